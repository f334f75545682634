//! The results as a document.
use super::{Left, Results};
use ccfs_testkit::document::wrapped;

fn row(cut_after_s: u64, name: &str, left: &Left) -> String {
    let settings = left
        .settings
        .map_or("damaged or gone".to_string(), |n| n.to_string());
    let empty = left.done_files - left.done_whole;
    let verdict = if left.is_prefix() { "yes" } else { "**no**" };
    format!(
        "| {cut_after_s} | {name} | {} | {} | {} | {empty} | {settings} | {verdict} |\n",
        left.last_step, left.journal_lines, left.done_files,
    )
}

/// Everything that is said of the results, with their table. `title` has the date.
pub fn document(title: &str, results: &Results) -> String {
    let Results {
        command,
        date,
        machine,
        kernel,
        load,
        ccfs,
        program,
        cut,
        rounds,
    } = results;
    let how = format!(
        "`{command}`. {date}; {machine}, {kernel}, a load of {load} before; {ccfs}. `{program}` runs on a new ext4 (loop device) and on a new ccfs volume, \
         both with their default options, at the same time. The cut: {cut}. Then both are mounted again."
    );
    let columns = "A step appends a line to a journal, replaces the file *settings* (write, rename), and makes a file *done.N*. \
                   *A prefix*: what is left is what the program had made at some moment.";
    let limits = "The host goes on after the cut. What a file system had given to its device is kept, so a power cut can take more.";
    let mut out = format!(
        "# {title}\n\n{}\n\n{}\n\n{}\n\n",
        wrapped(&how),
        wrapped(columns),
        wrapped(limits)
    );
    out += "| cut after s | file system | last step | lines of the journal | files done.N | of them empty | settings of step | a prefix |\n";
    out += "|---:|---|---:|---:|---:|---:|---:|---|\n";
    for round in rounds {
        out += &row(round.cut_after_s, "ext4", &round.ext4);
        out += &row(round.cut_after_s, "ccfs", &round.ccfs);
    }
    out
}
