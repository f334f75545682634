//! Values of options that are more than a number or a name.
use std::time::Duration;

/// Shortest and longest time between two looks, seconds.
const DELAY: std::ops::RangeInclusive<f64> = 0.1..=3600.0;

/// Of `--delay`.
pub fn delay(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if DELAY.contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!(
            "give seconds from {} to {}",
            DELAY.start(),
            DELAY.end()
        )),
    }
}

/// `UID` or `UID:GID`; a missing group is the user's number.
pub fn owner(text: &str) -> Result<(u32, u32), String> {
    let number = |t: &str| {
        t.parse::<u32>()
            .ok()
            .filter(|n| *n != u32::MAX)
            .ok_or(format!("\"{text}\" is no owner; write numbers, like 0:0"))
    };
    match text.split_once(':') {
        Some((uid, gid)) => Ok((number(uid)?, number(gid)?)),
        None => number(text).map(|id| (id, id)),
    }
}
