//! What differs between the files of two images: names, kinds, sizes, and the first bytes.
use crate::explore::{Distinct, Explored};
use crate::fs::Mount;
use crate::images::{Builder, Spec};
use crate::record::scratch;
use crate::{Fail, sys};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

/// Files of an image that are looked at.
const FILES_MAX: usize = 20_000;
/// Bytes of one file, and of all, that are compared.
const FILE_MAX: u64 = 1 << 20;
const ALL_MAX: u64 = 64 << 20;
/// Distinct failures that are compared, and differences that are kept of each.
pub const COMPARED: usize = 8;
const SHOWN: usize = 50;
/// Bytes that are shown of where contents part.
const BYTES: usize = 16;
const DEPTH_MAX: usize = 64;

/// What a failing image is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The consistent image with nearly the same writes.
    Nearest,
    /// The end of the trace.
    End,
}

/// How the files of a failing image differ from those of another.
#[derive(Clone, Debug)]
pub struct Difference {
    /// The image that it is compared with.
    pub with: Spec,
    /// Why with that one.
    pub role: Role,
    /// Path and what differs; at most so many as are shown.
    pub lines: Vec<(String, String)>,
    /// All that differ.
    pub total: usize,
    /// What was not compared, or why nothing was.
    pub note: Option<String>,
}

/// For each of the first [`COMPARED`] distinct failures: with the nearest consistent image, if there is one, and with the end of the trace.
/// The caller has made [`sys::private_mounts`]. Errors: images that cannot be built, and a signal; what cannot be mounted is a note.
pub fn differences(found: &Explored) -> Result<Vec<Vec<Difference>>, Fail> {
    let scratch = scratch()?;
    let looker = Looker {
        found,
        scratch: scratch.path(),
    };
    let first = found.distinct.iter().take(COMPARED);
    first.map(|distinct| looker.compare(distinct)).collect()
}

struct Looker<'a> {
    found: &'a Explored,
    scratch: &'a Path,
}

impl Looker<'_> {
    fn compare(&self, distinct: &Distinct) -> Result<Vec<Difference>, Fail> {
        let end = Spec::in_order(self.found.history.end());
        let mut others = Vec::new();
        if let Some(spec) = self.nearest(&distinct.minimal) {
            others.push((spec.clone(), Role::Nearest));
        }
        if others.iter().all(|(spec, _)| *spec != end) && distinct.minimal != end {
            others.push((end, Role::End));
        }
        let here = self.files(&distinct.minimal)?;
        let mut out = Vec::new();
        for (with, role) in others {
            let there = self.files(&with)?;
            out.push(difference(&here, &there, with, role));
        }
        Ok(out)
    }

    /// The consistent image that has nearly the same writes.
    fn nearest(&self, spec: &Spec) -> Option<&Spec> {
        let good = self.found.tested.iter().filter(|t| t.failure.is_none());
        good.map(|t| &t.spec)
            .min_by_key(|other| self.distance(spec, other))
    }

    /// Writes that one of two images has and the other has not.
    fn distance(&self, a: &Spec, b: &Spec) -> usize {
        let entries = &self.found.history.trace.entries;
        let (low, high) = (a.at.min(b.at), a.at.max(b.at));
        let changes =
            |range: &[crate::trace::Entry]| range.iter().filter(|e| e.is_change()).count();
        // What is lost of the common part, and what the longer one has beyond it.
        let common =
            |s: &Spec| -> BTreeSet<usize> { s.lost.iter().copied().filter(|n| *n < low).collect() };
        let longer = if a.at > b.at { a } else { b };
        let beyond = longer.lost.iter().filter(|n| **n >= low).count();
        let odd = |s: &Spec| usize::from(s.torn.is_some()) + usize::from(s.early.is_some());
        common(a).symmetric_difference(&common(b)).count()
            + changes(&entries[low..high]).saturating_sub(beyond)
            + odd(a)
            + odd(b)
    }

    /// The files of an image after its recovery, or why there are none.
    fn files(&self, spec: &Spec) -> Result<Result<Files, String>, Fail> {
        sys::interrupted()?;
        let image = Builder::new(&self.found.history).build(spec)?;
        let mount = match Mount::new(self.found.fs, Arc::new(image), self.scratch) {
            Ok(mount) => mount,
            Err(e) => return Ok(Err(format!("cannot be mounted ({e})"))),
        };
        let mut files = Files::default();
        files.walk(&mount.root, Path::new(""), 0);
        Ok(Ok(files))
    }
}

/// Compares the files of two images, or says why it cannot.
fn difference(
    here: &Result<Files, String>,
    there: &Result<Files, String>,
    with: Spec,
    role: Role,
) -> Difference {
    let mut out = Difference {
        with,
        role,
        lines: Vec::new(),
        total: 0,
        note: None,
    };
    let (here, there) = match (here, there) {
        (Ok(here), Ok(there)) => (here, there),
        (Err(why), _) => {
            out.note = Some(format!("This image {why}: its files cannot be compared."));
            return out;
        }
        (_, Err(why)) => {
            out.note = Some(format!("The other image {why}."));
            return out;
        }
    };
    let names: BTreeSet<&Vec<u8>> = here.items.keys().chain(there.items.keys()).collect();
    for name in names {
        let Some(text) = differs(here.items.get(name), there.items.get(name)) else {
            continue;
        };
        out.total += 1;
        if out.lines.len() < SHOWN {
            out.lines
                .push((String::from_utf8_lossy(name).into_owned(), text));
        }
    }
    if here.cut || there.cut {
        let text =
            "Only a part was compared: the images have more files or bytes than are looked at.";
        out.note = Some(text.into());
    }
    out
}

/// What there is of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Item {
    Dir,
    Link(Vec<u8>),
    /// Its size, and its first bytes.
    File(u64, Vec<u8>),
    Other,
    /// Names that cannot be read, and why.
    Unreadable(String),
}

#[derive(Default)]
struct Files {
    items: BTreeMap<Vec<u8>, Item>,
    bytes: u64,
    cut: bool,
}

impl Files {
    fn walk(&mut self, root: &Path, dir: &Path, depth: usize) {
        let names = match std::fs::read_dir(root.join(dir)) {
            Ok(names) => names,
            Err(e) => return self.unreadable(dir, &e),
        };
        for entry in names {
            let entry = match entry {
                Ok(entry) => entry,
                Err(e) => return self.unreadable(dir, &e),
            };
            let path = dir.join(entry.file_name());
            if path == Path::new("lost+found") {
                continue;
            }
            if self.items.len() >= FILES_MAX {
                self.cut = true;
                return;
            }
            let item = match self.item(&root.join(&path)) {
                Ok(item) => item,
                Err(e) => Item::Unreadable(e.to_string()),
            };
            let is_dir = item == Item::Dir;
            self.items
                .insert(path.as_os_str().as_bytes().to_vec(), item);
            if is_dir && depth < DEPTH_MAX {
                self.walk(root, &path, depth + 1);
            }
        }
    }

    fn unreadable(&mut self, dir: &Path, e: &std::io::Error) {
        let name = dir.as_os_str().as_bytes().to_vec();
        self.items.insert(name, Item::Unreadable(e.to_string()));
    }

    fn item(&mut self, path: &Path) -> std::io::Result<Item> {
        let meta = path.symlink_metadata()?;
        if meta.is_dir() {
            return Ok(Item::Dir);
        }
        if meta.is_symlink() {
            let target = std::fs::read_link(path)?;
            return Ok(Item::Link(target.as_os_str().as_bytes().to_vec()));
        }
        if !meta.is_file() {
            return Ok(Item::Other);
        }
        let room = FILE_MAX.min(ALL_MAX - self.bytes);
        self.cut |= meta.size() > room;
        let mut data = Vec::new();
        std::fs::File::open(path)?
            .take(room)
            .read_to_end(&mut data)?;
        self.bytes += data.len() as u64;
        Ok(Item::File(meta.size(), data))
    }
}

/// What is wrong with `here`, seen from `there`.
fn differs(here: Option<&Item>, there: Option<&Item>) -> Option<String> {
    Some(match (here, there) {
        (Some(a), Some(b)) if a == b => return None,
        (None, None) => return None,
        (None, Some(there)) => format!("missing; there it is {}", what(there)),
        (Some(here), None) => format!("only here: {}", what(here)),
        (Some(Item::File(size, data)), Some(Item::File(other, legal))) => {
            let differs = data.iter().zip(legal).position(|(a, b)| a != b);
            let at = differs.unwrap_or(data.len().min(legal.len()));
            let sizes = match size == other {
                true => format!("{size} bytes, as there"),
                false => format!("{size} bytes, there {other}"),
            };
            // Where one was read in part only, its end says nothing.
            let is_end = at as u64 == *size.min(other);
            match differs.is_some() || is_end {
                true => format!(
                    "{sizes}; differs from byte {at}: here {}, there {}",
                    bytes(data, at),
                    bytes(legal, at)
                ),
                false if size == other => return None,
                false => format!("{sizes}; the first {at} bytes are equal"),
            }
        }
        (Some(here), Some(there)) => format!("{}; there it is {}", what(here), what(there)),
    })
}

fn what(item: &Item) -> String {
    match item {
        Item::Dir => "a directory".into(),
        Item::Link(target) => format!("a link to {}", String::from_utf8_lossy(target)),
        Item::File(size, _) => format!("a file of {size} bytes"),
        Item::Other => "a special file".into(),
        Item::Unreadable(why) => format!("not readable ({why})"),
    }
}

/// The bytes from `at` on: as text where they are text, else in hexadecimal.
fn bytes(data: &[u8], at: usize) -> String {
    let part = &data[at.min(data.len())..data.len().min(at + BYTES)];
    let more = if data.len() > at + BYTES { "..." } else { "" };
    let plain = |b: &u8| (0x20..0x7f).contains(b) || *b == b'\n' || *b == b'\t';
    if part.is_empty() {
        "the end".into()
    } else if part.iter().all(plain) {
        format!("{:?}{more}", String::from_utf8_lossy(part))
    } else {
        let hex: Vec<String> = part.iter().map(|b| format!("{b:02x}")).collect();
        format!("{}{more}", hex.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_sizes_and_first_bytes_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let (here, there) = (dir.path().join("here"), dir.path().join("there"));
        for (root, data) in [(&here, "old text"), (&there, "old news")] {
            std::fs::create_dir_all(root.join("d")).unwrap();
            std::fs::write(root.join("d/changed"), data).unwrap();
            std::fs::write(root.join("same"), "x").unwrap();
            std::os::unix::fs::symlink(data, root.join("link")).unwrap();
        }
        std::fs::write(here.join("empty"), "").unwrap();
        std::fs::write(there.join("empty"), [0, 1, 2]).unwrap();
        std::fs::write(there.join("new"), "1234").unwrap();
        let look = |root: &Path| {
            let mut files = Files::default();
            files.walk(root, Path::new(""), 0);
            files
        };
        let (a, b) = (look(&here), look(&there));
        let told = |name: &str| differs(a.items.get(name.as_bytes()), b.items.get(name.as_bytes()));
        assert_eq!(told("same"), None);
        assert_eq!(told("d"), None);
        assert_eq!(
            told("d/changed").unwrap(),
            "8 bytes, as there; differs from byte 4: here \"text\", there \"news\""
        );
        assert_eq!(
            told("empty").unwrap(),
            "0 bytes, there 3; differs from byte 0: here the end, there 00 01 02"
        );
        assert_eq!(
            told("new").unwrap(),
            "missing; there it is a file of 4 bytes"
        );
        let part = |size, data: &str| Item::File(size, data.into());
        let cut = |a, b| differs(Some(&a), Some(&b));
        assert_eq!(cut(part(9, "abc"), part(9, "ab")), None, "read in part");
        let told_of_cut = cut(part(9, "abc"), part(7, "ab")).unwrap();
        assert_eq!(told_of_cut, "9 bytes, there 7; the first 2 bytes are equal");
        let link = "a link to old text; there it is a link to old news";
        assert_eq!(told("link").unwrap(), link);
        assert!(!a.cut && !b.cut);
    }
}
