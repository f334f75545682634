//! Reading what strace prints: calls with decoded arguments, results and stacks.
use std::collections::HashMap;

/// A system call that has ended.
#[derive(Clone, Debug, Default)]
pub struct Call {
    pub pid: u32,
    pub name: String,
    /// As printed.
    pub args: Vec<String>,
    /// The result; negative: it failed.
    pub result: i64,
    /// Frames of the stack, innermost first: object, function, address.
    pub stack: Vec<(String, String, String)>,
    /// The line that gives its place among the others.
    pub at: usize,
}

/// Parses the output of `strace -f -k -y -xx`. Lines that say nothing of a call are left out.
pub fn parse(text: &str) -> Vec<Call> {
    let mut calls: Vec<Call> = Vec::new();
    let mut unfinished: HashMap<u32, (String, usize)> = HashMap::new();
    for (number, line) in text.lines().enumerate() {
        if let Some(frame) = line.strip_prefix(" > ") {
            if let (Some(call), Some(frame)) = (calls.last_mut(), parse_frame(frame)) {
                call.stack.push(frame);
            }
            continue;
        }
        let Some((pid, rest)) = line.split_once(' ') else {
            continue;
        };
        let (Ok(pid), rest) = (pid.parse::<u32>(), rest.trim_start()) else {
            continue;
        };
        if let Some(begin) = rest.strip_suffix(" <unfinished ...>") {
            unfinished.insert(pid, (begin.to_string(), number));
            continue;
        }
        let (whole, begun) = match rest.strip_prefix("<... ") {
            Some(resumed) => {
                let Some((begin, at)) = unfinished.remove(&pid) else {
                    continue;
                };
                let tail = resumed.split_once(" resumed>").map_or("", |(_, t)| t);
                (format!("{begin}{tail}"), at)
            }
            None => (rest.to_string(), number),
        };
        if let Some(mut call) = parse_call(&whole) {
            // A descriptor is free when its close begins: another thread may have it before the close is seen to end.
            let is_close = call.name == "close";
            (call.pid, call.at) = (pid, if is_close { begun } else { number });
            calls.push(call);
        }
    }
    calls.sort_by_key(|call| call.at);
    calls
}

fn parse_frame(frame: &str) -> Option<(String, String, String)> {
    let (place, address) = frame.rsplit_once(" [")?;
    let (object, function) = place.split_once('(').unwrap_or((place, ")"));
    Some((
        object.to_string(),
        function.trim_end_matches(')').to_string(),
        address.trim_end_matches(']').to_string(),
    ))
}

fn parse_call(line: &str) -> Option<Call> {
    // Short lines have their result in a column of its own.
    let (head, result) = line.rsplit_once(" = ")?;
    let head = head.trim_end().strip_suffix(')')?;
    let (name, args) = head.split_once('(')?;
    let word = result.split([' ', '<']).next()?;
    let result = match word.strip_prefix("0x") {
        Some(hex) => i64::from_str_radix(hex, 16).unwrap_or(0),
        None => word.parse().ok()?,
    };
    Some(Call {
        name: name.to_string(),
        args: split_args(args),
        result,
        ..Default::default()
    })
}

/// Splits at commas outside of quotes, brackets and braces.
fn split_args(text: &str) -> Vec<String> {
    let (mut out, mut depth, mut quoted, mut current) = (Vec::new(), 0, false, String::new());
    for c in text.chars() {
        match c {
            '"' => quoted = !quoted,
            '[' | '{' | '(' if !quoted => depth += 1,
            ']' | '}' | ')' if !quoted => depth -= 1,
            ',' if !quoted && depth == 0 => {
                out.push(current.trim().to_string());
                current.clear();
                continue;
            }
            _ => {}
        }
        current.push(c);
    }
    if !current.trim().is_empty() {
        out.push(current.trim().to_string());
    }
    out
}

/// Bytes of a string in `\xNN` form: all quoted parts of the argument, one after the other.
pub fn bytes(arg: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for part in arg.split('"').skip(1).step_by(2) {
        out.extend(unescape(part));
    }
    out
}

fn unescape(text: &str) -> Vec<u8> {
    text.split("\\x")
        .skip(1)
        .filter_map(|hex| u8::from_str_radix(hex.get(..2)?, 16).ok())
        .collect()
}

/// A descriptor argument: its number, and the path that strace knows for it.
pub fn descriptor(arg: &str) -> (i64, Vec<u8>) {
    let (number, path) = arg.split_once('<').unwrap_or((arg, ""));
    let number = if number == "AT_FDCWD" {
        -100
    } else {
        number.parse().unwrap_or(-1)
    };
    (number, unescape(path.trim_end_matches('>')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read() {
        let text = "7 openat(AT_FDCWD<\\x2f\\x74>, \"\\x61\", O_WRONLY|O_CREAT, 0644) = 3<\\x2f\\x74\\x2f\\x61>\n > /bin/x(main+0x9) [0x123]\n\
                    7 write(3<\\x2f\\x61>, \"\\x61\\x2c\" <unfinished ...>\n8 close(4) = -1 EBADF (Bad file descriptor)\n\
                    7 <... write resumed>, 2)     = 2\n7 +++ exited with 0 +++\n";
        let calls = parse(text);
        assert_eq!(calls.len(), 3);
        assert_eq!((calls[0].name.as_str(), calls[0].result), ("openat", 3));
        assert_eq!(calls[0].stack[0].1, "main+0x9");
        assert_eq!(descriptor(&calls[0].args[0]), (-100, b"/t".to_vec()));
        assert_eq!(calls[1].result, -1);
        assert_eq!((bytes(&calls[2].args[1]), calls[2].at), (b"a,".to_vec(), 4));
    }
}
