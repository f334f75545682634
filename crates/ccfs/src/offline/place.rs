//! `IMAGE[:PATH]` on the command line.
use ccfs_command::{Failure, Outcome};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A file in an image.
#[derive(Debug, PartialEq, Eq)]
pub struct Place {
    pub image: PathBuf,
    /// As from the volume's root; empty for the root itself.
    pub path: PathBuf,
}

impl Place {
    /// The image's name may hold colons: it ends at the first colon before which there is a file, else at the first one.
    pub fn parse(text: &OsStr) -> Outcome<Place> {
        Self::parse_with(text, |path| {
            std::fs::metadata(path).is_ok_and(|m| !m.is_dir())
        })
    }

    fn parse_with(text: &OsStr, is_image: impl Fn(&Path) -> bool) -> Outcome<Place> {
        let bytes = text.as_bytes();
        let colons: Vec<usize> = (0..bytes.len()).filter(|i| bytes[*i] == b':').collect();
        let cut = |at: usize| Place {
            image: PathBuf::from(OsStr::from_bytes(&bytes[..at])),
            path: PathBuf::from(OsStr::from_bytes(bytes.get(at + 1..).unwrap_or(&[]))),
        };
        let ends = colons.iter().copied().chain([bytes.len()]);
        let found = ends.map(&cut).find(|p| is_image(&p.image));
        let place = found.unwrap_or_else(|| cut(colons.first().copied().unwrap_or(bytes.len())));
        if place.image.as_os_str().is_empty() {
            return Err(Failure::new(
                2,
                format!(
                    "\"{}\" names no image; write IMAGE:PATH",
                    text.to_string_lossy()
                ),
            ));
        }
        Ok(place)
    }

    /// The path for messages.
    pub fn shown(&self) -> String {
        match self.path.as_os_str().as_bytes() {
            b"" => "/".to_string(),
            path => ccfs_offline::show_name(path),
        }
    }
}

pub fn all(texts: &[OsString]) -> Outcome<Vec<Place>> {
    texts.iter().map(|t| Place::parse(t)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_ends_at_a_colon() {
        let files = ["a.img", "b:c.img", "/dev/x:0"];
        let parse = |text: &str| {
            let place = Place::parse_with(OsStr::new(text), |p| {
                files.iter().any(|f| Path::new(f) == p)
            });
            place.map(|p| {
                (
                    p.image.to_str().unwrap().to_string(),
                    p.path.to_str().unwrap().to_string(),
                )
            })
        };
        for (text, image, path) in [
            ("a.img", "a.img", ""),
            ("a.img:", "a.img", ""),
            ("a.img:/x:y", "a.img", "/x:y"),
            ("b:c.img:d", "b:c.img", "d"),
            ("/dev/x:0", "/dev/x:0", ""),
            ("none.img:p:q", "none.img", "p:q"),
            ("none.img", "none.img", ""),
        ] {
            assert_eq!(parse(text).unwrap(), (image.into(), path.into()), "{text}");
        }
        assert!(parse(":x").is_err() && parse("").is_err());
    }
}
