//! Programs that can do more than their caller leave his stream; those that he may only not read stay.
use super::*;

const GROUP: &str = "4321";

/// Copies of `who` that are more than a user's own program.
struct Programs {
    setgid: PathBuf,
    /// With a capability; `None` where files can have none here.
    capable: Option<PathBuf>,
    unreadable: PathBuf,
}

impl Programs {
    fn new(p: &Place) -> Programs {
        let who = p.who.to_str().unwrap();
        let copy = |name: &str, words: &[&str]| {
            let to = p.v.outside(name);
            let words = [words, &[who, to.to_str().unwrap()]].concat();
            run_ok("install", &words);
            to
        };
        let capable = copy("capable", &["-m", "755"]);
        let set = run(Command::new("setcap")
            .arg("cap_net_bind_service=ep")
            .arg(&capable));
        if set.code != 0 {
            println!("skipped: a program with capabilities: {}", set.all());
        }
        Programs {
            setgid: copy("setgid", &["-g", GROUP, "-m", "2755"]),
            capable: (set.code == 0).then_some(capable),
            unreadable: copy("unreadable", &["-m", "711"]),
        }
    }
}

fn as_user(p: &Place, steps: &str) -> Seen {
    let uid = USER.to_string();
    let user = [
        "setpriv",
        "--reuid",
        &uid,
        "--regid",
        &uid,
        "--clear-groups",
    ];
    p.walk_by(&user, steps)
}

#[test]
fn programs_that_can_do_more_leave_the_stream() {
    for options in ["commit=600", "commit=600,identity=proc"] {
        let Some(p) = Place::new("more-rights", options) else {
            return;
        };
        let all = Programs::new(&p);
        let who = p.who.to_str().unwrap();
        let more = [Some(&all.setgid), all.capable.as_ref()];
        for (round, program) in more.into_iter().flatten().enumerate() {
            let (program, id) = (program.to_str().unwrap(), 4910 + round);
            for _ in 0..5 {
                let seen = as_user(
                    &p,
                    &format!(
                        "set 4900 write f show before program {program} exec show program fork \
                         show child set {id} show own exec show again program {who} exec show plain"
                    ),
                );
                is_all(&seen, "before", 4900);
                is_all(&seen, "program child", 1);
                is_all(&seen, "own again plain", id as u64);
                // The caller is where he was.
                let seen = as_user(
                    &p,
                    &format!(
                        "set 4900 program {program} vfork show program program {who} exec show plain"
                    ),
                );
                is_all(&seen, "program plain", 1);
            }
        }
        // Root gains nothing by it.
        let steps = format!("set 4920 program {} exec show root", all.setgid.display());
        is_all(&p.walk(&steps), "root", 4920);
        p.v.finish();
    }
}

#[test]
fn unreadable_programs_stay_in_the_stream() {
    for options in ["commit=600", "commit=600,identity=proc"] {
        let Some(p) = Place::new("unreadable", options) else {
            return;
        };
        let all = Programs::new(&p);
        let program = all.unreadable.to_str().unwrap();
        let exact = p.is_exact("unreadable_programs_stay_in_the_stream");
        for _ in 0..10 {
            let seen = as_user(
                &p,
                &format!(
                    "set 4900 show a program {program} exec show b fork show c vfork show d exec show e"
                ),
            );
            is_all(&seen, "a b c d e", 4900);
            if exact {
                let threads = [
                    ("set 4900 beside 4901", 4900),
                    ("set 4900 beside 4901 thread set 4902", 4902),
                    ("set 4900 thread", 4900),
                ];
                for (begin, id) in threads {
                    let steps = format!("{begin} program {program} exec show a fork show b");
                    is_all(&as_user(&p, &steps), "a b", id);
                }
            }
        }
        p.v.finish();
    }
}
