//! Prints data to standard output as JSON Lines, indented JSON or a table.
//!
//! Messages go to standard error instead. Memory is bounded: a long table is printed in pages.

mod pretty;
mod table;

use std::io::{BufWriter, IsTerminal, Stdout, Write};

use stemmadb::{Object, Value};

pub(crate) use pretty::Palette;
use table::Page;

use crate::arguments::OutputOptions;
use crate::failure::{Failure, Result};

/// Format of printed data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputFormat {
    /// One JSON value per line.
    JsonLines,
    /// Indented JSON.
    PrettyJson,
    /// Aligned columns.
    Table,
}

impl OutputFormat {
    /// The format that the options select; by default JSON Lines to a pipe or file, and `on_terminal` on a terminal.
    pub(crate) fn choose(options: OutputOptions, on_terminal: OutputFormat) -> OutputFormat {
        match options {
            OutputOptions { json: true, .. } => OutputFormat::JsonLines,
            OutputOptions { pretty: true, .. } => OutputFormat::PrettyJson,
            OutputOptions { table: true, .. } => OutputFormat::Table,
            _ if std::io::stdout().is_terminal() => on_terminal,
            _ => OutputFormat::JsonLines,
        }
    }
}

/// A value that can be printed.
pub(crate) trait Printable {
    /// Appends the value as JSON.
    fn write_json(&self, out: &mut Vec<u8>) -> Result<()>;

    /// Converts the value to an object.
    fn into_object(self) -> Result<Object>;
}

impl Printable for Object {
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

/// Writes data to standard output in one format.
pub(crate) struct Printer {
    format: OutputFormat,
    palette: Palette,
    out: BufWriter<Stdout>,
    line: Vec<u8>,
    page: Page,
}

impl Printer {
    /// Creates a printer for `format`.
    pub(crate) fn new(format: OutputFormat) -> Self {
        let stdout = std::io::stdout();
        let colored = anstream::AutoStream::choice(&stdout) != anstream::ColorChoice::Never;
        let palette = if colored { Palette::COLORED } else { Palette::PLAIN };
        Printer {
            format,
            palette,
            out: BufWriter::with_capacity(64 << 10, stdout),
            line: Vec::new(),
            page: Page::new(stdout_width(), colored),
        }
    }

    /// Prints one of several rows.
    pub(crate) fn row(&mut self, row: impl Printable) -> Result<()> {
        match self.format {
            OutputFormat::JsonLines => self.json(&row),
            OutputFormat::PrettyJson => self.pretty(&Value::Object(row.into_object()?)),
            OutputFormat::Table => {
                self.page.add(row.into_object()?);
                if self.page.is_full() { self.print_page() } else { Ok(()) }
            }
        }
    }

    /// Prints a single record; as a table, one field per line.
    pub(crate) fn record(&mut self, record: Object) -> Result<()> {
        match self.format {
            OutputFormat::JsonLines => self.json(&record),
            OutputFormat::PrettyJson => self.pretty(&Value::Object(record)),
            OutputFormat::Table => {
                let text = table::properties(&record, self.palette);
                self.text(&text)
            }
        }
    }

    /// Prints text, with one line break at its end.
    pub(crate) fn text(&mut self, text: &str) -> Result<()> {
        let text = text.trim_end_matches('\n');
        writeln!(self.out, "{text}").map_err(Failure::output)
    }

    /// Prints the buffered rows and flushes standard output.
    pub(crate) fn flush(&mut self) -> Result<()> {
        if !self.page.is_empty() {
            self.print_page()?;
        }
        self.out.flush().map_err(Failure::output)
    }

    /// Names of the columns hidden because the terminal is too narrow.
    pub(crate) fn hidden(&self) -> &[String] {
        self.page.hidden()
    }

    fn json(&mut self, value: &impl Printable) -> Result<()> {
        self.line.clear();
        value.write_json(&mut self.line)?;
        self.line.push(b'\n');
        self.out.write_all(&self.line).map_err(Failure::output)
    }

    fn pretty(&mut self, value: &Value) -> Result<()> {
        let text = pretty::pretty(value, self.palette);
        self.text(&text)
    }

    fn print_page(&mut self) -> Result<()> {
        let text = self.page.take();
        self.text(&text)
    }
}

/// The width of the terminal, or `None` if standard output is not a terminal.
fn stdout_width() -> Option<usize> {
    let mut probe = comfy_table::Table::new();
    probe.set_content_arrangement(comfy_table::ContentArrangement::Dynamic);
    probe.width().map(usize::from)
}
