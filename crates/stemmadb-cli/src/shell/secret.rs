//! Reading a secret from the terminal, which shows asterisks instead.

use std::borrow::Cow;

use rustyline::completion::Completer;
use rustyline::highlight::{CmdKind, Highlighter};
use rustyline::hint::Hinter;
use rustyline::history::MemHistory;
use rustyline::validate::Validator;
use rustyline::{Config, Editor, Helper};

use super::terminal_failure;
use crate::failure::Result;

struct Mask;

impl Highlighter for Mask {
    fn highlight<'l>(&self, line: &'l str, _: usize) -> Cow<'l, str> {
        Cow::Owned("*".repeat(line.chars().count()))
    }

    fn highlight_char(&self, _: &str, _: usize, _: CmdKind) -> bool {
        true
    }
}

impl Completer for Mask {
    type Candidate = String;
}

impl Hinter for Mask {
    type Hint = String;
}

impl Validator for Mask {}

impl Helper for Mask {}

/// Reads a line that is not shown.
pub(crate) fn read_secret(prompt: &str) -> Result<String> {
    let config = Config::builder().auto_add_history(false).build();
    let mut editor: Editor<Mask, MemHistory> =
        Editor::with_history(config, MemHistory::new()).map_err(terminal_failure)?;
    editor.set_helper(Some(Mask));
    editor.readline(prompt).map_err(terminal_failure)
}
