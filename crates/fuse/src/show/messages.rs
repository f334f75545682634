//! The last messages of this process, for `status`: where there is no system log nobody else keeps them.
use super::Viewer;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

/// Messages that are kept.
pub const MESSAGES_MAX: usize = 64;
/// Bytes that are kept of one.
const TEXT_MAX: usize = 512;

/// What was said lately, and where it went besides.
#[derive(Debug, Default)]
pub struct Messages {
    last: Mutex<VecDeque<Message>>,
    to: Mutex<String>,
}

#[derive(Debug)]
struct Message {
    at: SystemTime,
    level: &'static str,
    text: String,
}

impl Messages {
    /// Keeps a message, and forgets the oldest one if need be.
    pub fn keep(&self, level: &'static str, text: &str) {
        let mut end = text.len().min(TEXT_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let mut last = self.last.lock();
        if last.len() == MESSAGES_MAX {
            last.pop_front();
        }
        last.push_back(Message {
            at: SystemTime::now(),
            level,
            text: text[..end].to_string(),
        });
    }

    /// Where messages go, for people.
    pub fn go_to(&self, place: &str) {
        let mut to = self.to.lock();
        if *to != place {
            *to = place.to_string();
        }
    }

    /// For root and the daemon's own user: messages name files, and whose those are nobody knows.
    pub(crate) fn json(&self, viewer: Viewer, daemon_uid: u32) -> Value {
        // In another user namespace uid 0 is not this root.
        if !viewer.is_root && (daemon_uid == 0 || viewer.uid != daemon_uid) {
            return json!({ "to": "", "messages": [] });
        }
        let told = |m: &Message| {
            let since = m.at.duration_since(UNIX_EPOCH).unwrap_or_default();
            json!({ "time_ms": since.as_millis() as u64, "level": m.level, "text": m.text })
        };
        let messages: Vec<Value> = self.last.lock().iter().map(told).collect();
        json!({ "to": *self.to.lock(), "messages": messages })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_kept_and_others_than_root_see_none() {
        let messages = Messages::default();
        for n in 0..MESSAGES_MAX + 3 {
            messages.keep("warn", &format!("{n} {}", "\u{fc}".repeat(TEXT_MAX)));
        }
        messages.go_to("here");
        let root = Viewer {
            uid: 0,
            is_root: true,
        };
        let all = messages.json(root, 0);
        let list = all["messages"].as_array().unwrap();
        assert_eq!((list.len(), &all["to"]), (MESSAGES_MAX, &json!("here")));
        let text = list[0]["text"].as_str().unwrap();
        assert!(text.starts_with("3 \u{fc}") && text.len() <= TEXT_MAX);
        let other = |uid| Viewer {
            uid,
            is_root: false,
        };
        let none = json!({ "to": "", "messages": [] });
        assert_eq!(messages.json(other(0), 0), none);
        assert_eq!(messages.json(other(7), 8), none);
        assert_eq!(messages.json(other(7), 7), all);
    }
}
