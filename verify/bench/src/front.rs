//! `ccfs bench`: measures, then prints and writes what came of it.
use crate::cli::{Extent, RunArgs};
use crate::outputs::{check_document, check_files, say};
use crate::report::{self, Cell};
use crate::session::{self, Plan};
use crate::state::State;
use crate::workload::{PAPER_DIVISOR, Scale};
use crate::{Because, Result, catalog, doc, goals, html};

/// Errors: nothing could be measured, or some run failed (after all others were made and reported).
pub fn run(args: &RunArgs) -> Result<()> {
    if args.list {
        for experiment in catalog::all(Scale(args.plan().scale)) {
            say(format!("{:<32} {}", experiment.name(), experiment.op()))?;
        }
        return Ok(());
    }
    check_files(&[args.json.as_deref(), args.html.as_deref()])?;
    check_document(args.doc.as_deref(), args.extent().name())?;
    let plan = args.plan();
    let mut state = State::at(args.state.as_deref())?;
    session::run(&plan, &mut state)?;
    let cells = report::cells(&state.records);
    if cells.is_empty() {
        return Err("nothing was measured; the lines above say why".into());
    }
    let conditions = conditions(&plan, &state);
    if let Some(file) = &args.json {
        report::write_json(&cells, file)?;
    }
    if let Some(file) = &args.html {
        let page = html::page(&conditions, state.machine().was_busy(), &cells);
        std::fs::write(file, page).because(file.display())?;
    }
    if let Some(document) = &args.doc {
        let text = document_part(args.extent(), &conditions, &cells);
        doc::insert(document, args.extent().name(), &text)?;
    }
    let (table, summary) = (report::table(&cells), report::summary(&cells));
    let goals = goals::markdown(&cells);
    say(format!("{conditions}\n\n{table}\n{summary}\n{goals}"))?;
    report::failures(&cells)
}

fn document_part(extent: Extent, conditions: &str, cells: &[Cell]) -> String {
    let command = match extent {
        Extent::Quick => "ccfs bench --quick",
        Extent::Standard => "make bench",
        Extent::All => "make bench-all",
    };
    let summary: Vec<String> = report::summary(cells)
        .lines()
        .map(|l| format!("* {l}"))
        .collect();
    format!(
        "`{command}`. {conditions}\n\n{}{}\n{}",
        goals::markdown(cells),
        report::markdown(cells),
        summary.join("\n")
    )
}

/// What has to be known beside the figures.
fn conditions(plan: &Plan, state: &State) -> String {
    let settings = state.settings();
    format!(
        "{}. {} s a run, {} rounds, 1/{PAPER_DIVISOR} of the paper's sizes x {}, an image of {} MiB",
        state.machine().text(),
        settings.seconds,
        settings.rounds,
        settings.scale,
        Scale(plan.scale).image_bytes() >> 20,
    )
}
