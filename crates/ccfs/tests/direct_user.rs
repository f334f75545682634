//! `ccfs direct` as an ordinary user: on what he has mounted himself, and on a mount of root's; below it a program that runs with root's rights.
#![cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
mod common;
mod home;
use common::{Ran, tool};
use home::{Home, IMAGE};
use std::fs;
use std::os::unix::fs::PermissionsExt;

const LIBRARY: &str = "libccfs_direct.so";
/// Of somebody else.
const OTHER: u32 = 65533;

/// What he may do, what he may not, and what a program of root's does for him, in a directory that is removed then.
const WORK: &str = r#"
mkdir u; cd u; mkdir a; for n in 1 2 3 4 5 6 7 8; do echo $n >a/$n; done; ls a
chown 0 a/1; chgrp 0 a/1; chmod 4755 a/2; chmod 0 a/3; cat a/3; echo more >>a/3; rm a/4; stat -c '%n %u %g %a %s' a/*
cp -a a copy; tar cf tar a; mkdir out; tar xf tar -C out; diff -r a/1 out/a/1; rm -r copy
for n in 1 2 3 4 5; do python3 -c "
import os
os.mkdir('p$n')
for n in range(20):
    with open(f'p$n/{n}', 'w') as f: f.write('x' * n)
print(sum(os.stat(f'p$n/{n}').st_size for n in range(20)), os.listdir('p$n').__len__())
try: os.chown('p$n/1', 0, 0)
except OSError as e: print(e)
try: os.setxattr('p$n/2', 'trusted.x', b'1')
except OSError as e: print(e.errno)
os.chmod('p$n/3', 0)
try: open('p$n/3')
except OSError as e: print(e)
os.rename('p$n', 'q$n')
"; done
cat ../roots/secret; echo x >../roots/new; rm -f ../roots/secret; mv ../other ../moved; rm -f ../other; echo x >../other; chmod 600 ../other
ln ../other a/link; echo x >../others/new; ls ../others; python3 -c "
import os
for call in (lambda: os.mkdir('../others/x'), lambda: os.rename('q1', '../others/q1'), lambda: os.link('q1/2', '../others/l'), lambda: open('../others/f', 'a')):
    try: call()
    except OSError as e: print(e)
"
$SETUID a/9; echo $?; $SETUID by-root sh -c 'id -u; mkdir c && echo x >c/f && ls c'; echo $?; cat a/9
if command -v chage >/dev/null; then LC_ALL=C chage -l nobody; fi
find . -printf '%P %y %m %U:%G %n %s\n' | grep -v ' d ' | sort; ls -d *
cd ..; chmod -R u+rwx u; exit 7
"#;

/// As the user, in a directory of the volume; led or not.
fn works(home: &Home, dir: &str, direct: bool) -> Ran {
    let launcher = match direct {
        true => format!(
            "{} direct --report={}/report --json --",
            home.place.text("ccfs"),
            home.path("")
        ),
        false => String::new(),
    };
    let set = format!(
        "export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME={} TMPDIR={} SETUID={} LC_ALL=C; umask 022; cd {dir}",
        home.path(""),
        home.path(""),
        home.place.text("setuid")
    );
    let script = home.place.text("work.sh");
    home.user(
        "sh",
        &["-c", &format!("{set} && exec {launcher} sh {script}")],
    )
}

/// Both ways the same; gives how many files were made directly, and what was said besides.
fn same(home: &Home, dir: &str, clean: &dyn Fn()) -> (u64, String) {
    let plain = works(home, dir, false);
    clean();
    let direct = works(home, dir, true);
    clean();
    assert_eq!(plain.code, 7, "{}{}", plain.out, plain.err);
    assert_eq!(
        (direct.code, &direct.out),
        (7, &plain.out),
        "{}",
        direct.err
    );
    let (besides, err): (Vec<&str>, Vec<&str>) =
        direct.err.lines().partition(|l| l.starts_with("ccfs"));
    assert_eq!(err, plain.err.lines().collect::<Vec<_>>());
    assert!(
        plain.out.contains("effective 0, LD_PRELOAD 0"),
        "{}",
        plain.out
    );
    let report = fs::read_to_string(home.path("report")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    (
        report["made"]["openat"].as_u64().unwrap_or(0),
        besides.join("\n"),
    )
}

/// The program, its library, and a program of root's.
fn install(home: &Home) {
    let built = std::env::current_exe().unwrap().with_file_name(LIBRARY);
    tool(
        "install",
        &[
            "-m",
            "644",
            built.to_str().unwrap(),
            &home.place.text(LIBRARY),
        ],
    );
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/setuid.c");
    let program = home.place.text("setuid");
    tool("cc", &["-O1", "-o", &program, source]);
    tool("chmod", &["4755", &program]);
    fs::write(home.place.path("work.sh"), WORK).unwrap();
}

#[test]
fn an_ordinary_user_and_a_program_of_roots() {
    let Some(home) = Home::new() else {
        return;
    };
    install(&home);
    let own = home.path("mnt");
    home.good(&["mount", IMAGE, "mnt"]);
    let again = || {
        let ran = home.shell(&format!("cd {own}; rm -rf u other moved"));
        assert_eq!(ran.code, 0, "{}", ran.err);
    };
    let (made, besides) = same(&home, &own, &again);
    assert!(made >= 100, "{made} files were made directly: {besides}");
    assert_eq!(besides, "", "nothing else is said");
    // Nobody else may look at it, neither way; nor at what is kept for him.
    for led in ["", &format!("{} direct --", home.place.text("ccfs"))] {
        let script = format!(
            "cd /; exec setpriv --reuid {OTHER} --regid {OTHER} --clear-groups env HOME=/nonexistent TMPDIR={} {led} ls {own}",
            home.path("")
        );
        let other = home.root(&["sh", "-c", &script]);
        assert!(
            other.code != 0 && other.out.is_empty(),
            "{led}: {}{}",
            other.out,
            other.err
        );
    }
    let kept = fs::read_dir(home.path(".cache/ccfs/direct")).unwrap();
    let kept: Vec<_> = kept.map(|e| e.unwrap().path()).collect();
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert_eq!(
        fs::metadata(&kept[0]).unwrap().permissions().mode() & 0o022,
        0
    );
    home.good(&["umount", "mnt"]);
    tool("e2fsck", &["-fn", &home.path(IMAGE)]);

    // Where he may write, but not make direct calls.
    let program = home.place.text("ccfs");
    let (image, dir) = (
        home.place.volume("root.img", "32M"),
        home.place.subdir("mine"),
    );
    let mounted = home.root(&[&program, "mount", "-o", "direct=on", &image, &dir]);
    assert_eq!(mounted.code, 0, "{}", mounted.err);
    let script = format!(
        "cd {dir}; chmod 1777 .; mkdir roots others; echo secret >roots/secret; chmod 600 roots/secret; echo other >other; chown {OTHER} others"
    );
    home.root(&["sh", "-ec", &script]);
    let again = || {
        let ran = home.root(&["rm", "-r", &format!("{dir}/u")]);
        assert_eq!(ran.code, 0, "{}", ran.err);
    };
    let (made, besides) = same(&home, &dir, &again);
    assert_eq!(made, 0);
    assert_eq!(
        besides
            .matches("allows this process no direct calls")
            .count(),
        1,
        "{besides}"
    );
    let left = home.root(&[
        "sh",
        "-c",
        &format!("cd {dir}; cat roots/secret other; ls . others roots"),
    ]);
    assert_eq!(
        left.out,
        "secret\nother\n.:\nlost+found\nother\nothers\nroots\n\nothers:\n\nroots:\nsecret\n"
    );
    let unmounted = home.root(&[&program, "umount", &dir]);
    assert_eq!(unmounted.code, 0, "{}", unmounted.err);
    tool("e2fsck", &["-fn", &image]);
}
