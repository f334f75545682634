//! How far another program is, on a terminal: the last line of what it prints, which the next one overwrites.
use std::io::{self, IsTerminal, Read, Write};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Between two lines.
const PAUSE: Duration = Duration::from_millis(100);
/// What is shown of a line, characters: one line of the narrowest terminal.
const WIDTH: usize = 78;

/// Runs a program, and shows on standard error, if it is a terminal, how far it is. Gives all that it printed.
pub fn shown(command: &mut Command) -> io::Result<Output> {
    if !io::stderr().is_terminal() {
        return command.output();
    }
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let (out, errors) = (child.stdout.take(), child.stderr.take());
    let errors = std::thread::spawn(move || {
        let mut text = Vec::new();
        errors.map(|mut pipe| pipe.read_to_end(&mut text));
        text
    });
    let mut line = Line::default();
    let (mut all, mut buffer) = (Vec::new(), [0; 4096]);
    let mut last = Instant::now();
    if let Some(mut out) = out {
        loop {
            let n = match out.read(&mut buffer) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                read => read.unwrap_or(0),
            };
            if n == 0 {
                break;
            }
            all.extend_from_slice(&buffer[..n]);
            line.add(&buffer[..n]);
            if last.elapsed() > PAUSE {
                last = Instant::now();
                let _ = write!(io::stderr(), "\r\x1b[K{}", line.text);
            }
        }
    }
    let status = child.wait();
    let _ = write!(io::stderr(), "\r\x1b[K");
    Ok(Output {
        status: status?,
        stdout: all,
        stderr: errors.join().unwrap_or_default(),
    })
}

/// What a terminal would show of the last line that was printed: a backspace takes back, a new line begins anew.
#[derive(Default)]
struct Line {
    text: String,
    ended: bool,
}

impl Line {
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            match byte {
                b'\n' | b'\r' => self.ended = true,
                0x08 => drop(self.text.pop()),
                0x20..0x7f => {
                    if std::mem::take(&mut self.ended) {
                        self.text.clear();
                    }
                    if self.text.len() < WIDTH {
                        self.text.push((*byte).into());
                    }
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_what_a_terminal_would_show() {
        let mut line = Line::default();
        line.add(b"Allocating group tables:   0/320");
        assert_eq!(line.text, "Allocating group tables:   0/320");
        line.add(b"\x08\x08\x08\x08\x08\x08\x08 12/320");
        assert_eq!(line.text, "Allocating group tables:  12/320");
        line.add(b"\x1b[2Jdone\n");
        assert_eq!(line.text, "Allocating group tables:  12/320[2Jdone");
        line.add(b"Writing");
        assert_eq!(line.text, "Writing");
        line.add(&[b'x'; 500]);
        assert_eq!(line.text.len(), WIDTH);
    }

    #[test]
    fn all_that_is_printed_is_there() {
        let out = shown(Command::new("sh").args(["-c", "echo a; echo b >&2; exit 3"])).unwrap();
        assert_eq!((out.stdout, out.stderr), (b"a\n".to_vec(), b"b\n".to_vec()));
        assert_eq!(out.status.code(), Some(3));
    }
}
