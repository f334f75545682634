//! docs/json.md says what programs print as JSON, no more and no less.
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Field and type, as the section of docs/json.md gives them.
pub fn documented(section: &str) -> BTreeMap<String, String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/json.md");
    let text = std::fs::read_to_string(path).unwrap();
    let part = text
        .split("\n## ")
        .find(|p| p.lines().next() == Some(section))
        .unwrap_or_else(|| panic!("docs/json.md has no section {section}"));
    part.lines()
        .filter_map(|l| l.strip_prefix("| `")?.split_once("` | "))
        .map(|(field, rest)| {
            let kind = rest.split(" |").next().unwrap();
            (field.to_string(), kind.to_string())
        })
        .collect()
}

/// The type of a value, as docs/json.md calls it.
pub fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Collects the fields of a value under their documented names.
fn fields(
    value: &Value,
    path: &str,
    table: &BTreeMap<String, String>,
    out: &mut BTreeSet<(String, &'static str)>,
) {
    if !path.is_empty() {
        out.insert((path.to_string(), kind(value)));
    }
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                let any = format!("{path}.*");
                let own = match path {
                    "" => name.clone(),
                    _ if table.contains_key(&any) => any,
                    _ => format!("{path}.{name}"),
                };
                fields(member, &own, table, out);
            }
        }
        Value::Array(elements) => {
            for element in elements {
                fields(element, &format!("{path}[]"), table, out);
            }
        }
        _ => {}
    }
}

/// Compares output with the table; fields below one that is empty or null are not asked for.
pub fn compare(section: &str, output: &str) -> Value {
    let value: Value = serde_json::from_str(output).unwrap_or_else(|e| panic!("{e}: {output}"));
    let table = documented(section);
    assert!(
        table.len() >= 3,
        "docs/json.md: {section} has lost its table"
    );
    let mut seen = BTreeSet::new();
    fields(&value, "", &table, &mut seen);
    for (field, kind) in &seen {
        let said = table
            .get(field)
            .unwrap_or_else(|| panic!("{section}: {field} is not in docs/json.md"));
        let fits = said.split(" or ").any(|k| k == *kind);
        assert!(
            fits,
            "{section}: {field} is a {kind}, docs/json.md says {said}"
        );
    }
    let names: BTreeSet<&str> = seen.iter().map(|(f, _)| f.as_str()).collect();
    for field in table.keys().filter(|f| !names.contains(f.as_str())) {
        let parent = field
            .strip_suffix("[]")
            .or_else(|| field.rsplit_once('.').map(|(parent, _)| parent));
        let parent_absent = parent.is_some_and(|p| {
            let is_empty = |v: &Value| v.is_null() || v.as_array().is_some_and(Vec::is_empty);
            !names.contains(p) || field.ends_with("[]") || at(&value, p).is_some_and(is_empty)
        });
        assert!(
            parent_absent,
            "{section}: {field} is in docs/json.md, but was not printed"
        );
    }
    value
}

fn at<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(value, |v, name| v.get(name))
}
