//! Clocks.
use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Time that also passes while the machine sleeps, or this process is stopped.
pub(crate) fn elapsed() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Day and minute in UTC of seconds since 1970.
pub fn date(seconds: i64) -> String {
    let (days, of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Years from March on, so that a leap day is the last one; eras of 400 years.
    let shifted = days + 719_468;
    let (era, day) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 {
        month_index + 3
    } else {
        month_index - 9
    };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day_of_month:02} {:02}:{:02}",
        of_day / 3600,
        of_day / 60 % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(date(0), "1970-01-01 00:00");
        assert_eq!(date(-1), "1969-12-31 23:59");
        assert_eq!(date(951_782_400), "2000-02-29 00:00");
        assert_eq!(date(951_827_696), "2000-02-29 12:34");
        assert_eq!(date(4_107_542_399), "2100-02-28 23:59");
        assert_eq!(date(4_107_542_400), "2100-03-01 00:00");
        assert_eq!(date(1_795_860_300), "2026-11-28 10:05");
    }
}
