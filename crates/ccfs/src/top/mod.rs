//! `ccfs top`: who is in which stream, what waits for what, and what it costs; live.
mod draw;
pub mod model;

use crate::cli::TopArgs;
use crate::volume;
use ccfs_command::{Context, Failure, Outcome, output::print_json, say};
use draw::View;
use model::Top;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

pub fn run(args: &TopArgs) -> Outcome<()> {
    let first = look(&args.dir)?;
    if args.json {
        return print_json(&first);
    }
    if args.once {
        print_once(&first);
        return Ok(());
    }
    if !std::io::stdout().is_terminal() {
        return Err(Failure::new(
            1,
            "stdout is no terminal; use --once or --json",
        ));
    }
    let mut terminal = ratatui::try_init().or_fail(1, "cannot use the terminal")?;
    let outcome = watch(&mut terminal, args, first);
    let restored = ratatui::try_restore().or_fail(1, "cannot restore the terminal");
    outcome.and(restored)
}

fn look(dir: &Path) -> Outcome<Top> {
    Ok(Top::of(&volume::status(dir)?))
}

fn print_once(top: &Top) {
    let view = View {
        now: top,
        before: None,
        scrolled: 0,
        paused: false,
        trouble: None,
    };
    let head = draw::head(&view);
    for line in head.iter().filter(|l| !l.starts_with("per second")) {
        say!("{line}");
    }
    say!("{}", draw::header());
    for (line, _) in draw::rows(top) {
        say!("{line}");
    }
}

/// The live view, until the user leaves it.
fn watch(terminal: &mut DefaultTerminal, args: &TopArgs, first: Top) -> Outcome<()> {
    let (mut now, mut seen) = (first, Instant::now());
    let mut before: Option<(Top, Duration)> = None;
    let (mut scrolled, mut paused) = (0usize, false);
    let mut trouble = None;
    loop {
        let view = View {
            now: &now,
            before: before.as_ref().map(|(top, past)| (top, *past)),
            scrolled,
            paused,
            trouble: trouble.as_deref(),
        };
        terminal
            .draw(|frame| draw::draw(frame, &view))
            .or_fail(1, "cannot write to the terminal")?;
        let rest = args.delay.saturating_sub(seen.elapsed());
        let pressed = event::poll(rest).or_fail(1, "cannot read the terminal")?;
        if pressed {
            let event = event::read().or_fail(1, "cannot read the terminal")?;
            if let Event::Key(key) = event
                && key.kind != KeyEventKind::Release
            {
                match key.code {
                    _ if leaves(&key) => return Ok(()),
                    KeyCode::Char('p' | ' ') => paused = !paused,
                    KeyCode::Down => {
                        let last = draw::rows(&now).len().saturating_sub(1);
                        scrolled = (scrolled + 1).min(last);
                    }
                    KeyCode::Up => scrolled = scrolled.saturating_sub(1),
                    _ => {}
                }
            }
            continue;
        }
        let past = seen.elapsed();
        seen = Instant::now();
        if paused {
            continue;
        }
        // A volume that was unmounted can come back.
        match look(&args.dir) {
            Ok(top) => {
                before = Some((std::mem::replace(&mut now, top), past));
                trouble = None;
            }
            Err(failure) => trouble = Some(failure.text),
        }
    }
}

fn leaves(key: &KeyEvent) -> bool {
    let interrupt = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc)
}
