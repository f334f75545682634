//! Modules inside a crate: imports make no circles. In the engine each folder is a floor: imports lead down only, what a type does is
//! said on the floor that defines it, and the fields of the floors' owners are their own.
//!
//! A folder's `mod.rs` stands for the folder, so what it takes of its own modules does not count; nor does `lib.rs`.
use super::{PLACES, files, none_of, root};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The engine's floors, from below.
const FLOORS: &[&str] = &[
    "base",
    "overlay",
    "core",
    "home",
    "commit",
    "operation",
    "calls",
    "volume",
];
/// What a mounted volume consists of: one for each floor.
const OWNERS: &[&str] = &["Core", "Home", "Committer", "Operations", "Calls", "Volume"];
/// Code by module ("home/apply"), without comments and tests. The crate's root is "".
type Modules = BTreeMap<String, String>;

fn modules_of(src: &Path) -> Modules {
    let mut modules = Modules::new();
    for path in files(src, "rs") {
        let name = path.strip_prefix(src).unwrap().with_extension("");
        let name = name.to_str().unwrap();
        if name.starts_with("bin/") {
            continue;
        }
        let name = name.strip_suffix("/mod").unwrap_or(name);
        let name = match name {
            "lib" | "main" | "mod" => "",
            _ => name,
        };
        let text = fs::read_to_string(&path).unwrap();
        modules.insert(name.to_string(), code_of(&text));
    }
    modules
}

fn code_of(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let is_tests = |at: usize| lines[at].starts_with("mod tests") && lines[at].ends_with('{');
    let end = (0..lines.len()).find(|at| is_tests(*at));
    let code = &lines[..end.unwrap_or(lines.len())];
    let bare = code.iter().map(|l| l.split("//").next().unwrap());
    bare.collect::<Vec<_>>().join("\n")
}

/// The paths that begin with `crate::` or `super::`, trees of imports taken apart.
fn paths(code: &str) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for head in ["crate::", "super::"] {
        for (at, _) in code.match_indices(head) {
            let inside =
                code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':');
            if !inside {
                spread("", &code[at..], &mut all);
            }
        }
    }
    all
}

/// Adds the paths of the tree at the beginning of `text`. Returns what follows it.
fn spread<'t>(before: &str, text: &'t str, all: &mut BTreeSet<String>) -> &'t str {
    let text = text.trim_start();
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':' || c == '*'));
    let (own, mut rest) = text.split_at(end.unwrap_or(text.len()));
    let path = format!("{before}{own}");
    if !(path.ends_with("::") && rest.starts_with('{')) {
        if !own.is_empty() {
            all.insert(path);
        }
        let other_name = rest.trim_start().strip_prefix("as ");
        return other_name.map_or(rest, |name| {
            name.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_')
        });
    }
    loop {
        rest = spread(&path, &rest[1..], all).trim_start();
        if !rest.starts_with(',') {
            return rest.strip_prefix('}').unwrap_or(rest);
        }
    }
}

/// The module that a path in `from` leads to: the longest part of it that is one.
fn target(modules: &Modules, from: &str, path: &str) -> Option<String> {
    let mut base: Vec<&str> = from.split('/').filter(|s| !s.is_empty()).collect();
    let mut steps: Vec<&str> = path.split("::").collect();
    match steps[0] {
        "crate" => base.clear(),
        _ => drop(base.pop()?),
    }
    steps.remove(0);
    while steps.first() == Some(&"super") {
        base.pop()?;
        steps.remove(0);
    }
    let whole: Vec<&str> = base.into_iter().chain(steps).collect();
    let parts = (0..=whole.len()).rev().map(|n| whole[..n].join("/"));
    parts.into_iter().find(|part| modules.contains_key(part))
}

type Edges = BTreeMap<String, BTreeSet<String>>;

fn edges(modules: &Modules) -> Edges {
    let mut edges = Edges::new();
    for (from, code) in modules.iter().filter(|m| !m.0.is_empty()) {
        let targets = paths(code)
            .into_iter()
            .filter_map(|p| target(modules, from, &p));
        let own = format!("{from}/");
        let counted = targets.filter(|t| t != from && !t.is_empty() && !t.starts_with(&own));
        edges.insert(from.clone(), counted.collect());
    }
    edges
}

fn reached(edges: &Edges, from: &str) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    let mut open = vec![from];
    while let Some(at) = open.pop() {
        for next in edges.get(at).into_iter().flatten() {
            if seen.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    seen
}

/// Modules that import themselves, by way of others.
fn in_circles(modules: &Modules) -> BTreeSet<String> {
    let edges = edges(modules);
    let all = modules.keys().filter(|m| reached(&edges, m).contains(*m));
    all.cloned().collect()
}

fn floor(module: &str) -> Option<usize> {
    let folder = module.split('/').next()?;
    FLOORS.iter().position(|f| *f == folder)
}

fn upward_imports(modules: &Modules) -> Vec<String> {
    let mut wrong = Vec::new();
    for (from, targets) in edges(modules) {
        for to in targets {
            match (floor(&from), floor(&to)) {
                (Some(a), Some(b)) if a >= b => {}
                (Some(_), Some(_)) => wrong.push(format!("{from} imports {to}, which is above it")),
                _ => wrong.push(format!("{from} or {to} is on no floor")),
            }
        }
    }
    wrong
}

/// The name behind one of `words` at the beginning of a line, visibility left out.
fn defined<'l>(line: &'l str, words: &[&str]) -> Option<&'l str> {
    let line = line.strip_prefix("pub").unwrap_or(line);
    let line = match line.strip_prefix('(') {
        Some(rest) => rest.split_once(')')?.1,
        None => line,
    };
    let (word, rest) = line.trim_start().split_once(' ')?;
    let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_'));
    let name = &rest[..end.unwrap_or(rest.len())];
    words.contains(&word).then_some(name)
}

/// Whose methods the line begins to define: `impl<..> Type<..> {`, but not a trait's.
fn inherent(line: &str) -> Option<&str> {
    let mut rest = line.strip_prefix("impl")?;
    if rest.starts_with('<') {
        rest = rest.split_once("> ")?.1;
    }
    let rest = rest.trim_start();
    let name = rest.split(['<', ' ']).next()?;
    (!rest.contains(" for ") && !name.starts_with('$')).then_some(name)
}

fn misplaced_methods(modules: &Modules) -> Vec<String> {
    let mut homes: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
    for (module, code) in modules {
        for name in code.lines().filter_map(|l| defined(l, &["struct", "enum"])) {
            homes.entry(name).or_default().extend(floor(module));
        }
    }
    let mut wrong = Vec::new();
    for (module, code) in modules {
        for name in code.lines().filter_map(inherent) {
            let here = floor(module);
            if !homes
                .get(name)
                .is_some_and(|h| here.is_some_and(|at| h.contains(&at)))
            {
                wrong.push(format!(
                    "{module} has methods of {name}, which is another floor's"
                ));
            }
        }
    }
    wrong
}

fn lent_fields(modules: &Modules) -> Vec<String> {
    let mut wrong = Vec::new();
    for (module, code) in modules {
        let mut owner = None;
        for line in code.lines() {
            let begins = defined(line, &["struct"]).filter(|name| OWNERS.contains(name));
            owner = match line {
                "}" => None,
                _ => begins.or(owner),
            };
            if let (Some(owner), true) = (owner, line.starts_with("    pub")) {
                wrong.push(format!(
                    "{module}: a field of {owner} is not its own: {}",
                    line.trim()
                ));
            }
        }
    }
    wrong
}

fn engine() -> Modules {
    modules_of(&root().join("crates/engine/src"))
}

#[test]
fn modules_import_each_other_in_no_circle() {
    let mut wrong = Vec::new();
    let mut seen = 0;
    for folder in PLACES {
        for entry in fs::read_dir(root().join(folder)).into_iter().flatten() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_string();
            if !path.join("src").is_dir() {
                continue;
            }
            let modules = modules_of(&path.join("src"));
            seen += modules.len();
            for module in in_circles(&modules) {
                wrong.push(format!(
                    "{folder}/{name}: {module} imports itself by way of others"
                ));
            }
        }
    }
    assert!(seen > 200, "the test finds no modules any more: {seen}");
    none_of(wrong);
}

#[test]
fn the_engine_has_floors() {
    let modules = engine();
    let mut wrong = upward_imports(&modules);
    wrong.extend(misplaced_methods(&modules));
    wrong.extend(lent_fields(&modules));
    assert!(
        edges(&modules).len() > 50,
        "the test finds no modules any more"
    );
    none_of(wrong);
}

#[test]
fn what_is_wrong_with_modules_is_found() {
    let made = |sources: &[(&str, &str)]| -> Modules {
        let sources = sources.iter();
        sources
            .map(|(m, code)| (m.to_string(), code_of(code)))
            .collect()
    };
    let right = [
        (
            "home",
            "use crate::core::Core;\nuse apply::Applier;\npub struct Home {\n    core: Core,\n}\n",
        ),
        (
            "home/apply",
            "use crate::home::Home;\nuse super::pages;\nimpl Home {\n}\npub struct Applier;\nimpl Applier {\n}\n",
        ),
        (
            "home/pages",
            "// use crate::home::apply;\npub struct Pages;\n",
        ),
        (
            "core",
            "pub struct Core {\n    dev: u8,\n}\n#[cfg(test)]\nmod tests {\n    use crate::home::Home;\n}\n",
        ),
    ];
    let modules = made(&right);
    assert!(in_circles(&modules).is_empty());
    let all = [upward_imports, misplaced_methods, lent_fields];
    assert_eq!(all.map(|f| f(&modules).len()), [0, 0, 0]);

    let with = |module: &str, more: &str| {
        let mut modules = made(&right);
        let code = modules.get_mut(module).unwrap();
        code.push_str(&format!("\n{more}"));
        modules
    };
    let circle = with(
        "home/pages",
        "use crate::{\n    core::Core,\n    home::{Home, apply::{self, Applier}},\n};\n",
    );
    assert_eq!(in_circles(&circle).len(), 2);
    let inline = with("home/pages", "fn f() -> super::apply::Applier {}\n");
    assert_eq!(in_circles(&inline).len(), 2);
    assert_eq!(
        upward_imports(&with("core", "use crate::home::pages::Pages;\n")).len(),
        1
    );
    assert_eq!(
        misplaced_methods(&with("core", "impl Home {\n}\n")).len(),
        1
    );
    assert_eq!(
        misplaced_methods(&with("core", "impl<'a> Pages<'a> {\n}\n")).len(),
        1
    );
    let lent = right[3].1.replace("    dev", "    pub(crate) dev");
    assert_eq!(lent_fields(&made(&[("core", &lent)])).len(), 1);
}
