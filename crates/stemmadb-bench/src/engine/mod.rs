//! Who is measured? Stemma and its peers, asked the same way.
//!
//! What is timed and what is verified runs the same code: only the sink differs. A [`Tally`] counts what comes, so that each
//! timed answer is compared with the number of rows it must have; a [`Collect`] keeps all of it, for the comparison with the truth.

pub(crate) mod shop;
mod sql;
mod sqlite;
mod stemma;

use crate::Result;
use crate::workload::{Answer, Question, Wanted};

pub(crate) use sqlite::{Access, Asked, Layout, SETTINGS, Sqlite};
pub(crate) use stemma::{Caching, Stemma, insert_json};

/// A database that documents were put into.
pub(crate) trait Engine {
    /// Its name in results.
    fn name(&self) -> &'static str;

    /// Makes ready to ask these questions, which have one form: same fields, kinds of condition, order, limit and want, other
    /// values. One that is asked again and again may be prepared.
    fn asker(&self, questions: &[Question]) -> Result<Asker<'_>>;

    /// Makes ready to ask for all rows, page by page.
    fn pager(&self, question: &Question, row_count: usize) -> Result<Pager<'_>>;

    /// Makes ready to get documents by id.
    fn getter(&self, form: Form) -> Result<Getter<'_>>;
}

/// Asks a question and hands all of the answer to the sink.
pub(crate) type Asker<'a> = Box<dyn FnMut(&Question, &mut dyn Sink) -> Result<()> + 'a>;

/// Hands the next page to the sink, the first one if it is told to begin; whether there may be more.
pub(crate) type Pager<'a> = Box<dyn FnMut(bool, &mut dyn Sink) -> Result<bool> + 'a>;

/// Gets the document with an id; hands nothing to the sink if there is none.
pub(crate) type Getter<'a> = Box<dyn FnMut(&str, &mut dyn Sink) -> Result<()> + 'a>;

/// As what a document is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// As the engine hands it out.
    Document,
    /// As JSON text.
    Json,
    /// One field of it, which is text.
    Field(&'static str),
}

/// A body, as an engine hands it out.
pub(crate) enum Body<'a> {
    Text(&'a str),
    Packed(&'a stemmadb::Document),
    /// One field, which is text.
    Field(&'a str),
}

/// Takes answers.
pub(crate) trait Sink {
    /// A row that is only an id.
    fn id(&mut self, id: &str) -> Result<()>;
    /// A row that is a document, or one field of it.
    fn document(&mut self, id: &str, body: Body<'_>) -> Result<()>;
    /// A count.
    fn count(&mut self, count: u64);
}

/// Counts rows; a count counts as so many.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) row_count: u64,
    /// So that no body goes unread.
    byte_count: usize,
}

/// Keeps everything.
#[derive(Default)]
pub(crate) struct Collect {
    pub(crate) answer: Answer,
}

impl Sink for Tally {
    fn id(&mut self, id: &str) -> Result<()> {
        self.row_count += 1;
        self.byte_count += id.len();
        Ok(())
    }

    fn document(&mut self, id: &str, body: Body<'_>) -> Result<()> {
        self.row_count += 1;
        self.byte_count += id.len();
        if let Body::Text(text) | Body::Field(text) = body {
            self.byte_count += text.len();
        }
        Ok(())
    }

    fn count(&mut self, count: u64) {
        self.row_count += count;
    }
}

impl Sink for Collect {
    fn id(&mut self, id: &str) -> Result<()> {
        self.answer.ids.push(id.to_owned());
        Ok(())
    }

    fn document(&mut self, id: &str, body: Body<'_>) -> Result<()> {
        self.answer.ids.push(id.to_owned());
        self.answer.bodies.push(match body {
            Body::Text(text) | Body::Field(text) => text.to_owned(),
            Body::Packed(document) => document.to_json()?,
        });
        Ok(())
    }

    fn count(&mut self, count: u64) {
        self.answer.count = Some(count);
    }
}

/// Everything the engine answers to `question`.
pub(crate) fn answer(asker: &mut Asker<'_>, question: &Question) -> Result<Answer> {
    let mut sink = Collect::default();
    asker(question, &mut sink)?;
    Ok(sink.answer)
}

impl Wanted {
    /// As it is written in results.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Wanted::Ids => "ids",
            Wanted::Documents => "documents",
            Wanted::Json => "documents as JSON",
            Wanted::Count => "count",
        }
    }
}
