//! How a command line calls a stream: by its number, by its name, or `default`.
use ccfs_client::STREAM_DEFAULT;
use ccfs_client::abi::{STREAM_NAME_MAX, is_stream_name};

/// A stream that is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamRef {
    Number(u64),
    Name(String),
}

/// Of a word on the command line.
pub fn parse(word: &str) -> Result<StreamRef, String> {
    if word == "default" {
        return Ok(StreamRef::Number(STREAM_DEFAULT));
    }
    if !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit()) {
        return match word.parse() {
            Ok(number @ 1..) => Ok(StreamRef::Number(number)),
            _ => Err("streams have numbers from 1 to 18446744073709551615".into()),
        };
    }
    parse_name(word).map(StreamRef::Name)
}

/// Of a word that is to be a name.
pub fn parse_name(word: &str) -> Result<String, String> {
    match is_stream_name(word.as_bytes()) {
        true => Ok(word.into()),
        false => Err(format!(
            "a name has 1 to {STREAM_NAME_MAX} ASCII letters, digits and signs, no space; it is no number, and not \"default\""
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_called_by_number_or_name() {
        let name = |text: &str| Ok(StreamRef::Name(text.into()));
        assert_eq!(parse("17"), Ok(StreamRef::Number(17)));
        assert_eq!(parse("default"), Ok(StreamRef::Number(STREAM_DEFAULT)));
        assert_eq!(parse("build"), name("build"));
        assert_eq!(parse("ci/linux-x86_64:3"), name("ci/linux-x86_64:3"));
        let long = "x".repeat(STREAM_NAME_MAX);
        assert_eq!(parse(&long), name(&long));
        let longer = format!("{long}x");
        for bad in [
            "",
            "0",
            "18446744073709551616",
            "a b",
            "a\n",
            "\u{e9}t\u{e9}",
            &longer,
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        for bad in ["default", "17"] {
            assert!(parse_name(bad).is_err(), "{bad}");
        }
    }
}
