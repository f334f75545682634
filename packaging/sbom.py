#!/usr/bin/env python3
"""What the released programs are made of.

usage: sbom.py sbom [COMMIT] | sbom.py notices

sbom     the software bill of materials, CycloneDX 1.5 as JSON: every package of Cargo.lock that the programs use. Those whose
         code is not in the programs (build scripts, macros) have the scope "excluded".
notices  the licences of everything that is in the programs, each text once

Needs cargo, and the sources of the dependencies where cargo keeps them. The same sources and SOURCE_DATE_EPOCH give the same bytes.
"""
import datetime
import html
import json
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
PROGRAMS = ["ccfs", "ccfs-bench", "ccfs-evidence", "ccfs-libccfs", "ccfs-preload"]
REGISTRY = "registry+https://github.com/rust-lang/crates.io-index"
# Files with a licence's text, or with the names that it wants to see kept.
LICENCE_FILE = re.compile(r"(un)?licen[sc]e|copying|copyright|notice", re.IGNORECASE)
SOURCE_FILE = re.compile(r"\.(rs|c|h|py|toml|html)$")


def run(*command):
    return subprocess.run(command, cwd=TOP, check=True, stdout=subprocess.PIPE, text=True).stdout


def rustc():
    """Version, target and root of the compiler; its standard library is in every program."""
    said = dict(line.split(": ", 1) for line in run("rustc", "-vV").splitlines() if ": " in line)
    return said["release"], said["host"], Path(run("rustc", "--print", "sysroot").strip())


def used(target, edges):
    """(name, version) of the packages that the programs use by way of such edges, as cargo chooses features for these programs."""
    packages = [word for name in PROGRAMS for word in ("-p", name)]
    tree = run("cargo", "tree", "--locked", "--target", target, "--edges", edges, "--prefix", "none",
               "--no-dedupe", "--format", "{p}", *packages)
    lines = [line.split() for line in tree.splitlines() if line.strip()]
    return {(words[0], words[1].removeprefix("v")) for words in lines}


def checksums():
    """SHA-256 of each package, from Cargo.lock."""
    blocks = (TOP / "Cargo.lock").read_text().split("[[package]]")
    fields = [dict(re.findall(r'^(\w+) = "(.*)"$', block, re.MULTILINE)) for block in blocks]
    return {(f["name"], f["version"]): f.get("checksum") for f in fields if "name" in f}


def metadata(target):
    return json.loads(run("cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", target))


def licence_texts(folder):
    """(path below the folder, text) of the licences in the sources of a package, those of C code in it too."""
    found = []
    for path in sorted(folder.rglob("*")):
        if LICENCE_FILE.match(path.name) and not SOURCE_FILE.search(path.name) and path.is_file():
            found.append((path.relative_to(folder), path.read_text(errors="replace")))
    return found


def mit_text(package):
    """The same of a package under MIT alone whose sources name the holders, and whose text was left out when it was packed."""
    source = Path(package["manifest_path"]).parent / "src/lib.rs"
    if package["license"] != "MIT" or not source.exists():
        return []
    holders = re.findall(r"^// (Copyright .*)$", source.read_text(), re.MULTILINE)
    text = re.sub(r"(?m)^Copyright .*$", lambda _: "\n".join(holders), (TOP / "LICENSE-MIT").read_text(), count=1)
    return [(Path("lib.rs"), text)] if holders else []


def reference(package):
    if package["source"] == REGISTRY:
        return f"pkg:cargo/{package['name']}@{package['version']}"
    return f"ccfs:{package['name']}@{package['version']}"


def component(package, checksum, scope):
    is_ours = package["source"] is None
    made = {
        "type": "application" if package["name"] in PROGRAMS[:3] else "library",
        "bom-ref": reference(package),
        "name": package["name"],
        "version": package["version"],
        "scope": scope,
    }
    if package["description"]:
        made["description"] = " ".join(package["description"].split())
    if checksum:
        made["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    # Some packages still write "/" for OR.
    made["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    if not is_ours:
        made["purl"] = reference(package)
    if package["repository"]:
        made["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return made


def sbom(commit):
    release, target, _ = rustc()
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or run("git", "log", "-1", "--format=%ct"))
    date = datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    linked, all_used = used(target, "normal,no-proc-macro"), used(target, "normal,build")
    sums, about = checksums(), metadata(target)
    packages = {p["id"]: p for p in about["packages"] if (p["name"], p["version"]) in all_used}
    version = next(p["version"] for p in packages.values() if p["name"] == "ccfs")
    components = []
    for package in packages.values():
        key = (package["name"], package["version"])
        scope = "required" if key in linked else "excluded"
        components.append(component(package, sums.get(key), scope))
    std = {
        "type": "library", "bom-ref": f"rust-std@{release}", "name": "rust-std", "version": release, "scope": "required",
        "description": "The standard library of Rust, in every program",
        "licenses": [{"expression": "MIT OR Apache-2.0"}],
        "externalReferences": [{"type": "vcs", "url": "https://github.com/rust-lang/rust"}],
    }
    components.append(std)
    components.sort(key=lambda c: c["bom-ref"])
    whole = f"ccfs@{version}"
    edges = [{"ref": whole, "dependsOn": sorted(reference(p) for p in packages.values() if p["name"] in PROGRAMS)}]
    for node in about["resolve"]["nodes"]:
        if node["id"] not in packages:
            continue
        # What tests alone use is not in the programs.
        kinds = {d["pkg"]: {k["kind"] for k in d["dep_kinds"]} for d in node["deps"]}
        to = [reference(packages[i]) for i, kind in kinds.items() if i in packages and kind != {"dev"}]
        edges.append({"ref": reference(packages[node["id"]]), "dependsOn": sorted(set(to))})
    edges.sort(key=lambda e: e["ref"])
    metadata_of_ours = {
        "timestamp": date,
        "component": {
            "type": "application", "bom-ref": whole, "name": "ccfs", "version": version,
            "licenses": [{"expression": "Apache-2.0 OR MIT"}],
        },
        "properties": [{"name": "ccfs:rustc", "value": release}, {"name": "ccfs:target", "value": target}],
    }
    if commit:
        metadata_of_ours["properties"].append({"name": "ccfs:commit", "value": commit})
    bom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'ccfs {version} {commit} {epoch} {release} {target}')}",
        "version": 1,
        "metadata": metadata_of_ours,
        "components": components,
        "dependencies": edges,
    }
    print(json.dumps(bom, indent=1, ensure_ascii=False))


def plain(page):
    """The text of an HTML page."""
    page = re.sub(r"(?s)<(head|style|script)\b.*?</\1>", "", page)
    text = html.unescape(re.sub(r"<[^>]*>", "", page))
    return re.sub(r"\n\s*\n+", "\n\n", text).strip() + "\n"


def notices():
    release, target, root = rustc()
    linked = used(target, "normal,no-proc-macro")
    packages = [p for p in metadata(target)["packages"] if p["source"] and (p["name"], p["version"]) in linked]
    packages.sort(key=lambda p: (p["name"], p["version"]))
    print("THIRD-PARTY NOTICES\n")
    print("The programs and the library of ccfs hold code of the packages below. Where a licence gives a choice, any of the")
    print("choices will do. Their texts follow, each once.\n")
    texts, lacking = {}, []
    for package in packages:
        name = f"{package['name']} {package['version']}"
        authors = ", ".join(re.sub(r"\s*<.*?>", "", a) for a in package["authors"])
        print(f"{name}: {package['license']}" + (f" ({authors})" if authors else ""))
        found = licence_texts(Path(package["manifest_path"]).parent) or mit_text(package)
        if not found:
            lacking.append(name)
        for path, text in found:
            # The same text with other ends of lines is the same text.
            key = "\n".join(line.rstrip() for line in text.strip().splitlines())
            texts.setdefault(key, []).append(name if len(path.parts) == 1 else f"{name}, {path.parent}")
    print(f"The standard library of Rust {release}: MIT OR Apache-2.0, and those of what it holds itself")
    if lacking:
        sys.exit(f"no licence text in the sources of: {', '.join(lacking)}")
    for text, names in texts.items():
        print("\n" + "-" * 78 + "\n" + "\n".join(names) + "\n\n" + text)
    page = root / "share/doc/rust/COPYRIGHT-library.html"
    if page.exists():
        print("\n" + "-" * 78 + f"\nThe standard library of Rust {release}\n\n" + plain(page.read_text()))
    else:
        print(f"\nThe licences of Rust's standard library are not in this toolchain: https://github.com/rust-lang/rust/tree/{release}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["sbom"] and len(sys.argv) <= 3:
        sbom(sys.argv[2] if len(sys.argv) == 3 else None)
    elif sys.argv[1:] == ["notices"]:
        notices()
    else:
        sys.exit("usage: sbom.py sbom [COMMIT] | sbom.py notices")
