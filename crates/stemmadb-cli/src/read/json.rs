//! Documents in JSON: one after the other (JSON Lines, or spread over lines as people write them), or as the elements
//! of one array, which may stand inside an outer object.

use super::scan::Scanner;
use super::{DOCUMENT_BYTES_MAX, Documents, Found};
use crate::failure::{Failure, Result};

/// A name in an outer object is not longer than this.
const NAME_BYTES_MAX: usize = 64 << 10;

/// JSON objects one after the other.
pub(crate) struct Sequence {
    scanner: Scanner,
}

impl Sequence {
    /// The objects of `scanner`, which stands where the first may begin.
    pub(crate) fn new(scanner: Scanner) -> Self {
        Sequence { scanner }
    }
}

impl Documents for Sequence {
    fn next(&mut self, into: &mut Vec<u8>) -> Result<Option<Found>> {
        self.scanner.pass_space()?;
        if self.scanner.peek()?.is_none() {
            return Ok(None);
        }
        take_object(&mut self.scanner, into).map(Some)
    }

    fn bytes(&self) -> u64 {
        self.scanner.bytes()
    }
}

/// The elements of one JSON array.
pub(crate) struct Array {
    scanner: Scanner,
    state: ArrayState,
    /// The array stands inside an outer object, whose rest is of no interest.
    nested: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum ArrayState {
    Unopened,
    Opened,
    Between,
    Closed,
}

impl Array {
    /// The elements of the array that begins at `scanner`.
    pub(crate) fn new(scanner: Scanner) -> Self {
        Array { scanner, state: ArrayState::Unopened, nested: false }
    }

    /// The elements of the array that stands at `names`, one below the other, in the object that begins at `scanner`.
    pub(crate) fn inside(mut scanner: Scanner, names: &[String]) -> Result<Self> {
        for name in names {
            enter(&mut scanner, name)?;
        }
        Ok(Array { scanner, state: ArrayState::Unopened, nested: true })
    }

    fn open(&mut self) -> Result<()> {
        self.scanner.pass_space()?;
        if self.scanner.peek()? != Some(b'[') {
            return Err(unexpected(&mut self.scanner, "an array of documents"));
        }
        self.scanner.pass(1);
        self.state = ArrayState::Opened;
        Ok(())
    }

    fn close(&mut self) -> Result<()> {
        self.scanner.pass(1);
        self.state = ArrayState::Closed;
        if self.nested {
            return self.scanner.pass_rest();
        }
        self.scanner.pass_space()?;
        match self.scanner.peek()? {
            None => Ok(()),
            Some(_) => Err(self.scanner.place().failure("something follows the end of the array")),
        }
    }
}

impl Documents for Array {
    fn next(&mut self, into: &mut Vec<u8>) -> Result<Option<Found>> {
        if self.state == ArrayState::Unopened {
            self.open()?;
        }
        if self.state == ArrayState::Closed {
            return Ok(None);
        }
        self.scanner.pass_space()?;
        match (self.state, self.scanner.peek()?) {
            (_, Some(b']')) => {
                self.close()?;
                return Ok(None);
            }
            (ArrayState::Between, Some(b',')) => {
                self.scanner.pass(1);
                self.scanner.pass_space()?;
            }
            (ArrayState::Between, _) => return Err(unexpected(&mut self.scanner, "a comma or the end of the array")),
            _ => {}
        }
        self.state = ArrayState::Between;
        take_object(&mut self.scanner, into).map(Some)
    }

    fn bytes(&self) -> u64 {
        self.scanner.bytes()
    }
}

/// Takes the object that begins here.
fn take_object(scanner: &mut Scanner, into: &mut Vec<u8>) -> Result<Found> {
    let place = scanner.place();
    if scanner.peek()? != Some(b'{') {
        return Err(unexpected(scanner, "a document"));
    }
    scanner.take_value(into, DOCUMENT_BYTES_MAX)?;
    Ok(Found { place, exact: true })
}

/// Passes what stands before the value of `name` in the object that begins here.
fn enter(scanner: &mut Scanner, name: &str) -> Result<()> {
    scanner.pass_space()?;
    let place = scanner.place();
    if scanner.peek()? != Some(b'{') {
        return Err(unexpected(scanner, &format!("an object with the field {name:?}")));
    }
    scanner.pass(1);
    let mut quoted = Vec::new();
    super::write_string(name, &mut quoted);
    let mut key = Vec::new();
    loop {
        scanner.pass_space()?;
        match scanner.peek()? {
            Some(b'"') => {}
            Some(b'}') => return Err(place.failure(format!("this object has no field {name:?}"))),
            _ => return Err(unexpected(scanner, "a field")),
        }
        key.clear();
        scanner.take_value(&mut key, NAME_BYTES_MAX)?;
        scanner.pass_space()?;
        if scanner.peek()? != Some(b':') {
            return Err(unexpected(scanner, "a colon"));
        }
        scanner.pass(1);
        scanner.pass_space()?;
        if key == quoted {
            return Ok(());
        }
        scanner.pass_value()?;
        scanner.pass_space()?;
        match scanner.peek()? {
            Some(b',') => scanner.pass(1),
            Some(b'}') => {}
            _ => return Err(unexpected(scanner, "a comma or the end of the object")),
        }
    }
}

/// The failure to find what is `expected` here, in the words of the person who wrote the file.
fn unexpected(scanner: &mut Scanner, expected: &str) -> Failure {
    let place = scanner.place();
    let found = match scanner.ahead() {
        Ok([]) => "the end of the input".to_owned(),
        Ok([b'{', ..]) => "an object".to_owned(),
        Ok([b'[', ..]) => "an array".to_owned(),
        Ok([b'"', ..]) => "a string".to_owned(),
        Ok([b'0'..=b'9' | b'-', ..]) => "a number".to_owned(),
        Ok(ahead) => match String::from_utf8_lossy(&ahead[..ahead.len().min(4)]).chars().next() {
            Some(character) => format!("{character:?}"),
            None => "something else".to_owned(),
        },
        Err(failure) => return failure,
    };
    let failure = place.failure(format!("expected {expected}, found {found}"));
    if expected.contains("document") {
        return failure.with_hint("a document is a JSON object: {\"field\": value, …}");
    }
    failure
}
