//! Exercisers: random calls, checked against a model in memory, from a seed.
//!
//! The same exercisers run on a mounted directory (`mounted`) and on the engine without a mount (`engine`).

pub mod engine;
pub mod file;
pub mod mounted;
pub mod tree;

/// The last calls before a failure, for its report.
pub struct History {
    lines: std::collections::VecDeque<String>,
}

impl History {
    pub fn new() -> History {
        History {
            lines: std::collections::VecDeque::new(),
        }
    }
    pub fn note(&mut self, line: String) {
        if self.lines.len() == 24 {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }
    pub fn text(&self) -> String {
        self.lines.iter().map(|l| format!("  {l}\n")).collect()
    }
}

impl Default for History {
    fn default() -> Self {
        Self::new()
    }
}
