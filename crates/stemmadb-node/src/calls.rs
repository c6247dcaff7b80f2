//! Calls from JavaScript: each has a number, runs on a thread of a pool, and is answered on the event loop.
//!
//! All answers go through one function of the package, which finds the promise by the number. A promise of Node-API's
//! own would need a queue for each call.

use std::sync::Arc;

use napi::bindgen_prelude::{Buffer, Either5, FnArgs, Function, Undefined};
use napi::threadsafe_function::{ThreadsafeFunction, ThreadsafeFunctionCallMode};
use napi_derive::napi;
use stemmadb::{Error, Object, Result};
use stemmadb_client::bindings::error_name;

use crate::cursor::Cursor;
use crate::handle::Handle;
use crate::pool::Pool;
use crate::text::mark_large_integers;

/// What a call returns.
pub(crate) enum Answer {
    Nothing,
    /// JSON.
    Text(String),
    Bytes(Vec<u8>),
    Handle(Handle),
    Cursor(Cursor),
}

/// How the package has to read a value.
#[derive(Clone, Copy)]
enum Form {
    /// As it is.
    Plain = 0,
    /// JSON.
    Json = 1,
    /// JSON with marked integers.
    MarkedJson = 2,
    /// JSON of an error.
    Error = 3,
}

type JsAnswer = Either5<Undefined, String, Buffer, Handle, Cursor>;
type Arguments = FnArgs<(f64, u32, JsAnswer)>;
type Complete = ThreadsafeFunction<Completion, (), Arguments, napi::Status, false, true>;

struct Completion {
    number: f64,
    form: Form,
    answer: Answer,
}

fn arguments(completion: Completion) -> Arguments {
    let Completion { number, form, answer } = completion;
    let answer = match answer {
        Answer::Nothing => Either5::A(()),
        Answer::Text(text) => Either5::B(text),
        Answer::Bytes(bytes) => Either5::C(bytes.into()),
        Answer::Handle(handle) => Either5::D(handle),
        Answer::Cursor(cursor) => Either5::E(cursor),
    };
    (number, form as u32, answer).into()
}

/// The way back to the package, one for each environment that loads it.
#[napi]
pub struct Calls {
    complete: Arc<Complete>,
    /// Marks strings of JSON text that stand for integers which JavaScript's numbers don't have.
    marker: Arc<str>,
}

#[napi]
impl Calls {
    /// Creates it with the function that receives number, form and value of each answer.
    #[napi(constructor)]
    pub fn new(complete: Function<'_, Arguments, ()>, marker: String) -> napi::Result<Self> {
        let complete = complete.build_threadsafe_function::<Completion>().weak::<true>();
        let complete = complete.build_callback(|context| Ok(arguments(context.value)))?;
        Ok(Calls { complete: Arc::new(complete), marker: marker.into() })
    }
}

impl Calls {
    /// Runs `work` in a pool, and answers call `number` with its result.
    pub(crate) fn run(&self, pool: &'static Pool, number: f64, work: impl FnOnce() -> Result<Answer> + Send + 'static) {
        let pending = Pending { complete: self.complete.clone(), marker: self.marker.clone(), number: Some(number) };
        pool.run(Box::new(move || {
            let result = work();
            pending.answer(result);
        }));
    }
}

/// A call that has no answer yet. It is answered with an error if it is dropped.
struct Pending {
    complete: Arc<Complete>,
    marker: Arc<str>,
    number: Option<f64>,
}

impl Pending {
    fn answer(mut self, result: Result<Answer>) {
        match result {
            Ok(Answer::Text(text)) => match mark_large_integers(&text, &self.marker) {
                Some(marked) => self.send(Form::MarkedJson, Answer::Text(marked)),
                None => self.send(Form::Json, Answer::Text(text)),
            },
            Ok(answer) => self.send(Form::Plain, answer),
            Err(error) => self.fail(&error),
        }
    }

    fn fail(&mut self, error: &Error) {
        let mut object = Object::new();
        object.insert("code", error_name(error.kind()));
        object.insert("message", error.message());
        if let Some(hint) = error.hint() {
            object.insert("hint", hint);
        }
        self.send(Form::Error, Answer::Text(stemmadb::Value::Object(object).to_json()));
    }

    fn send(&mut self, form: Form, answer: Answer) {
        if let Some(number) = self.number.take() {
            // It fails when the environment is being torn down, and nobody waits any more.
            let _status =
                self.complete.call(Completion { number, form, answer }, ThreadsafeFunctionCallMode::NonBlocking);
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.number.is_some() {
            self.fail(&Error::internal("the call ended without a result"));
        }
    }
}
