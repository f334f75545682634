//! Random insertions, removals, lookups and scans against a model, on volumes of all kinds; e2fsck and debugfs judge.

mod dir_common;
use dir_common::{Links, Rng, Volume};
use std::collections::{BTreeMap, BTreeSet};

/// Volumes: block sizes, with and without hash trees, checksums and types.
const KINDS: &[&[&str]] = &[
    &["-b", "1024"],
    &["-b", "2048"],
    &["-b", "4096"],
    &["-b", "1024", "-O", "^metadata_csum"],
    &["-b", "4096", "-O", "^metadata_csum"],
    &["-b", "1024", "-O", "^dir_index"],
    &["-b", "4096", "-O", "^dir_index,^metadata_csum"],
    &["-b", "1024", "-O", "^filetype"],
    &["-b", "2048", "-O", "^dir_index,^filetype,^metadata_csum"],
    &[
        "-b",
        "1024",
        "-O",
        "^extents,^64bit,^flex_bg,^metadata_csum,^huge_file",
        "-I",
        "128",
    ],
    &["-b", "4096", "hash_alg=tea"],
    &["-b", "1024", "hash_alg=legacy"],
];

fn name(rng: &mut Rng, space: usize) -> Vec<u8> {
    let number = rng.index(space);
    match number % 7 {
        0 => format!("{number:0>200}").into_bytes(),
        1 => format!("größe-{number}").into_bytes(),
        2 => format!("{number:0>255}").into_bytes(),
        _ => format!("f{number}").into_bytes(),
    }
}

fn step(
    volume: &Volume,
    dir: u32,
    rng: &mut Rng,
    model: &mut BTreeMap<Vec<u8>, u32>,
    links: &mut Links,
    space: usize,
    grow: usize,
) {
    let name = name(rng, space);
    let image = &volume.image;
    match rng.index(10) {
        n if n < grow => {
            let ino = links.take(volume);
            let before = image.dir_insert(dir, &name, ino, 1).unwrap();
            let old = model.insert(name, ino);
            // Without the feature `filetype` there are no types.
            assert_eq!(before.map(|(ino, _)| ino), old);
            if let Some(old) = old {
                links.give(old);
            }
        }
        8 => {
            let found = image.dir_lookup(dir, &name).unwrap().map(|(ino, _)| ino);
            assert_eq!(found, model.get(&name).copied());
        }
        _ => {
            let removed = model.remove(&name);
            let before = image.dir_remove(dir, &name).unwrap();
            assert_eq!(before.map(|(ino, _)| ino), removed);
            if let Some(ino) = removed {
                links.give(ino);
            }
        }
    }
}

fn judge(volume: &Volume, dir: u32, rng: &mut Rng, model: &BTreeMap<Vec<u8>, u32>) {
    assert_eq!(&volume.scan(dir, 0), model);
    let image = &volume.image;
    assert_eq!(image.dir_is_empty(dir).unwrap(), model.is_empty());
    for (name, ino) in model.iter().step_by(1 + model.len() / 500) {
        assert_eq!(image.dir_lookup(dir, name).unwrap().unwrap().0, *ino);
    }
    if let Some(name) = model.keys().nth(rng.index(model.len().max(1))) {
        let from = image.cookie_of(name);
        let rest: BTreeMap<_, _> = model
            .iter()
            .filter(|(n, _)| image.cookie_of(n) >= from)
            .map(|(n, i)| (n.clone(), *i))
            .collect();
        assert_eq!(volume.scan(dir, from), rest);
    }
    assert_eq!(image.dir_lookup(dir, b"..").unwrap().unwrap().0, 2);
    assert_eq!(image.dir_lookup(dir, b".").unwrap().unwrap().0, dir);
}

#[test]
fn random_steps_follow_a_model() {
    for (seed, kind) in KINDS.iter().enumerate() {
        let mut rng = Rng::new(seed as u64 + 1);
        let mut volume = Volume::make(64, kind);
        let dir = volume.mkdir(2, "d");
        let (mut model, mut links) = (BTreeMap::new(), Links::default());
        println!("{kind:?} seed {seed}");
        for (round, (steps, grow)) in [(30, 7), (60, 6), (3000, 7), (3000, 3), (4000, 6)]
            .into_iter()
            .enumerate()
        {
            for _ in 0..steps {
                step(&volume, dir, &mut rng, &mut model, &mut links, 5000, grow);
            }
            judge(&volume, dir, &mut rng, &model);
            if round % 2 == 1 {
                links.settle(&volume, 2);
                volume.check();
                assert_eq!(volume.debugfs_ls("/d"), model);
                volume = volume.reopen();
                judge(&volume, dir, &mut rng, &model);
            }
        }
        links.settle(&volume, 2);
        volume.check();
        let dump = volume.debugfs("htree_dump /d");
        let indexed = volume.image.geometry().has_dir_index;
        assert_eq!(dump.contains("Root node dump"), indexed, "{dump}");
        for name in model.keys() {
            assert!(volume.image.dir_remove(dir, name).unwrap().is_some());
        }
        assert!(volume.image.dir_is_empty(dir).unwrap());
        assert_eq!(volume.scan(dir, 0).len(), 0);
    }
}

/// More names with one hash than a leaf holds: leaves are continued, and every name is still found.
#[test]
fn names_with_equal_hashes_span_leaves() {
    let mut volume = Volume::make(64, &["-b", "1024", "hash_alg=legacy"]);
    let dir = volume.mkdir(2, "d");
    let equal = equal_hashes(16);
    let cookies: BTreeSet<u64> = equal.iter().map(|n| volume.image.cookie_of(n)).collect();
    let cookie = *cookies.first().unwrap();
    assert!(cookies.iter().all(|c| c >> 32 == cookie >> 32));
    let mut links = Links::default();
    let mut model = BTreeMap::new();
    let mut names: Vec<Vec<u8>> = (0..400)
        .map(|i| format!("other-{i}").into_bytes())
        .collect();
    for (i, name) in equal.iter().enumerate() {
        names.insert(i * 20, name.clone());
    }
    for name in &names {
        let ino = links.take(&volume);
        volume.image.dir_insert(dir, name, ino, 1).unwrap();
        model.insert(name.clone(), ino);
        assert_eq!(
            volume
                .image
                .dir_lookup(dir, &equal[0])
                .unwrap()
                .map(|(ino, _)| ino),
            model.get(&equal[0]).copied()
        );
    }
    assert_eq!(volume.scan(dir, 0), model);
    let rest: BTreeMap<_, _> = model
        .iter()
        .filter(|(n, _)| volume.image.cookie_of(n) >= cookie)
        .map(|(n, i)| (n.clone(), *i))
        .collect();
    assert!(equal.iter().all(|name| rest.contains_key(name)));
    assert_eq!(volume.scan(dir, cookie), rest);
    // A listing goes on behind the last cookie that it gave, wherever it was interrupted.
    let (mut from, mut seen) = (0, Vec::new());
    loop {
        let mut next = None;
        let scanned = volume.image.dir_scan(dir, from, &mut |entry| {
            next = Some(entry);
            false
        });
        scanned.unwrap();
        let Some(entry) = next else { break };
        from = entry.cookie + 1;
        seen.push(entry.name);
    }
    assert_eq!(seen.len(), model.len(), "each name is listed once");
    assert!(seen.iter().all(|name| model.contains_key(name)));
    links.settle(&volume, 2);
    volume.check();
    volume = volume.reopen();
    for name in &equal {
        assert_eq!(
            volume.image.dir_lookup(dir, name).unwrap().unwrap().0,
            model[name]
        );
        assert!(volume.image.dir_remove(dir, name).unwrap().is_some());
        assert_eq!(volume.image.dir_lookup(dir, name).unwrap(), None);
    }
}

/// Long names with the same legacy hash: the last of three free characters is solved for, since the factor of the hash has an
/// inverse.
fn equal_hashes(count: usize) -> Vec<Vec<u8>> {
    const FACTOR: u32 = 7_152_373;
    const TARGET: u32 = 0x2345_6789;
    let inverse = (0..5).fold(FACTOR, |x, _| {
        x.wrapping_mul(2_u32.wrapping_sub(FACTOR.wrapping_mul(x)))
    });
    let step = |(newer, older): (u32, u32), c: u8| {
        let next = older.wrapping_add(newer ^ (i32::from(c as i8) as u32).wrapping_mul(FACTOR));
        (
            if next & 0x8000_0000 != 0 {
                next.wrapping_sub(0x7fff_ffff)
            } else {
                next
            },
            newer,
        )
    };
    let good = |c: u8| c != 0 && c != b'/';
    let mut out = Vec::new();
    for i in 0.. {
        let prefix = format!("{i:0>240}").into_bytes();
        let start = prefix
            .iter()
            .fold((0x12a3_fe2d, 0x37ab_e8f9), |state, &c| step(state, c));
        for c1 in (1..=255).filter(|&c| good(c)) {
            let first = step(start, c1);
            for c2 in (1..=255).filter(|&c| good(c)) {
                let (newer, older) = step(first, c2);
                for sum in [TARGET, TARGET + 0x7fff_ffff] {
                    let c3 = (sum.wrapping_sub(older) ^ newer).wrapping_mul(inverse) as i32;
                    if let Ok(c3) = i8::try_from(c3)
                        && good(c3 as u8)
                        && step((newer, older), c3 as u8).0 == TARGET
                    {
                        let mut name = prefix.clone();
                        name.extend([c1, c2, c3 as u8]);
                        out.push(name);
                    }
                }
            }
        }
        if out.len() >= count {
            break;
        }
    }
    out
}
