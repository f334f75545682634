//! Parts of documents that programs make: what stands between two markers.

/// A document in three.
#[derive(Debug, PartialEq, Eq)]
pub struct Marked<'a> {
    /// Up to the first marker, which is its end.
    pub before: &'a str,
    pub inside: &'a str,
    /// From the second marker on.
    pub after: &'a str,
}

/// `None`: a marker is missing, or `end` comes first.
pub fn marked<'a>(text: &'a str, begin: &str, end: &str) -> Option<Marked<'a>> {
    let (from, to) = (text.find(begin)? + begin.len(), text.find(end)?);
    Some(Marked {
        before: &text[..from],
        inside: text.get(from..to)?,
        after: &text[to..],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_in_their_order() {
        let found = marked("a [ b ] c", "[", "]").unwrap();
        assert_eq!(
            (found.before, found.inside, found.after),
            ("a [", " b ", "] c")
        );
        assert_eq!(marked("[]", "[", "]").unwrap().inside, "");
        for text in ["", "a [ b", "a ] b", "] a ["] {
            assert_eq!(marked(text, "[", "]"), None, "{text}");
        }
    }
}
