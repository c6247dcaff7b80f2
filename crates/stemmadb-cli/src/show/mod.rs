//! How does data look on the way out?
//!
//! JSON Lines where a program reads, a table or indented JSON where a person does. Only data goes through here; remarks
//! go to standard error. Memory is bounded: a long table is shown a page at a time.

mod color;
mod table;

use std::io::{BufWriter, IsTerminal, Stdout, Write};

use stemmadb::{Object, Value};

pub(crate) use color::Paint;
use table::Page;

use crate::arguments::Form;
use crate::failure::{Failure, Result};

/// How rows look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// One JSON text a line.
    Lines,
    /// JSON spread over lines.
    Pretty,
    /// Columns.
    Table,
}

impl Look {
    /// What the options ask for; else lines in a pipe and `on_terminal` on a terminal.
    pub(crate) fn of(form: Form, on_terminal: Look) -> Look {
        match form {
            Form { json: true, .. } => Look::Lines,
            Form { pretty: true, .. } => Look::Pretty,
            Form { table: true, .. } => Look::Table,
            _ if std::io::stdout().is_terminal() => on_terminal,
            _ => Look::Lines,
        }
    }
}

/// What can be shown.
pub(crate) trait Shown {
    /// Appends it as JSON.
    fn write_json(&self, out: &mut Vec<u8>) -> Result<()>;

    /// It as names and values.
    fn into_object(self) -> Result<Object>;
}

impl Shown for Object {
    fn write_json(&self, out: &mut Vec<u8>) -> Result<()> {
        let mut before = b'{';
        for (name, value) in self {
            out.push(std::mem::replace(&mut before, b','));
            Value::from(name).write_json(out);
            out.push(b':');
            value.write_json(out);
        }
        out.extend_from_slice(if before == b'{' { b"{}" } else { b"}" });
        Ok(())
    }

    fn into_object(self) -> Result<Object> {
        Ok(self)
    }
}

/// Data on its way to standard output.
pub(crate) struct Show {
    look: Look,
    paint: Paint,
    out: BufWriter<Stdout>,
    line: Vec<u8>,
    page: Page,
}

impl Show {
    /// Data that looks like `look`.
    pub(crate) fn new(look: Look) -> Self {
        let stdout = std::io::stdout();
        let colored = anstream::AutoStream::choice(&stdout) != anstream::ColorChoice::Never;
        let paint = if colored { Paint::COLORED } else { Paint::PLAIN };
        Show {
            look,
            paint,
            out: BufWriter::with_capacity(64 << 10, stdout),
            line: Vec::new(),
            page: Page::new(stdout_width(), colored),
        }
    }

    /// One of many rows.
    pub(crate) fn row(&mut self, row: impl Shown) -> Result<()> {
        match self.look {
            Look::Lines => self.json(&row),
            Look::Pretty => self.pretty(&Value::Object(row.into_object()?)),
            Look::Table => {
                self.page.add(row.into_object()?);
                if self.page.is_full() { self.turn_page() } else { Ok(()) }
            }
        }
    }

    /// One thing with its properties: names and values below each other instead of a table of one row.
    pub(crate) fn record(&mut self, record: Object) -> Result<()> {
        match self.look {
            Look::Lines => self.json(&record),
            Look::Pretty => self.pretty(&Value::Object(record)),
            Look::Table => {
                let text = table::properties(&record, self.paint);
                self.text(&text)
            }
        }
    }

    /// Text as it is, a line's end added.
    pub(crate) fn text(&mut self, text: &str) -> Result<()> {
        let text = text.trim_end_matches('\n');
        writeln!(self.out, "{text}").map_err(Failure::output)
    }

    /// Everything shown so far is seen now.
    pub(crate) fn flush(&mut self) -> Result<()> {
        if !self.page.is_empty() {
            self.turn_page()?;
        }
        self.out.flush().map_err(Failure::output)
    }

    /// Names of fields that a table had no room for.
    pub(crate) fn hidden(&self) -> &[String] {
        self.page.hidden()
    }

    fn json(&mut self, shown: &impl Shown) -> Result<()> {
        self.line.clear();
        shown.write_json(&mut self.line)?;
        self.line.push(b'\n');
        self.out.write_all(&self.line).map_err(Failure::output)
    }

    fn pretty(&mut self, value: &Value) -> Result<()> {
        let text = color::pretty(value, self.paint);
        self.text(&text)
    }

    fn turn_page(&mut self) -> Result<()> {
        let text = self.page.take();
        self.text(&text)
    }
}

/// The columns of the terminal, if standard output is one.
fn stdout_width() -> Option<usize> {
    let mut probe = comfy_table::Table::new();
    probe.set_content_arrangement(comfy_table::ContentArrangement::Dynamic);
    probe.width().map(usize::from)
}
