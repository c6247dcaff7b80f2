//! One JavaScript engine with the functions of one design document: what runs inside a worker.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rquickjs::context::{EvalOptions, intrinsic as with};
use rquickjs::function::Func;
use rquickjs::{Context, Ctx, Function, Object, Persistent, Runtime, Value};

/// What may be used of the language: everything but what tells the time more finely than to the millisecond.
type Intrinsics = (
    with::Date,
    with::Eval,
    with::RegExpCompiler,
    with::RegExp,
    with::Json,
    with::Proxy,
    with::MapSet,
    with::TypedArrays,
    with::Promise,
    with::WeakRef,
);

const PRELUDE: &str = include_str!("prelude.js");
/// What the engine says of an allocation beyond its bound.
const OUT_OF_MEMORY: &str = "\"reason\":\"out of memory\"";
const STACK_BYTES_MAX: usize = 512 << 10;

/// What a call is bounded by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) time: Duration,
    pub(super) memory_bytes: usize,
}

/// Why an engine can't go on.
#[derive(Debug)]
pub(super) enum Failure {
    /// The function is missing or can't be compiled: error and reason, as JSON.
    Uncallable(String),
    /// It took too long, or too much memory: the engine is not to be used again.
    Fatal(&'static str),
}

/// What is told of a function that took too long.
pub(super) const TOO_LONG: &str = "timeout";
/// What is told of a function that took too much memory.
pub(super) const TOO_LARGE: &str = "memory";

/// An engine.
pub(super) struct Engine {
    deadline: Rc<Cell<Option<Instant>>>,
    is_interrupted: Rc<Cell<bool>>,
    time: Duration,
    api: Persistent<Object<'static>>,
    context: Context,
}

impl Engine {
    /// An engine for the design document `design`, given as JSON.
    pub(super) fn new(design: &str, bounds: Bounds) -> Result<Self, Failure> {
        let runtime = Runtime::new().map_err(|_| Failure::Fatal(TOO_LARGE))?;
        runtime.set_memory_limit(bounds.memory_bytes);
        runtime.set_max_stack_size(STACK_BYTES_MAX);
        let (deadline, is_interrupted) = (Rc::new(Cell::new(None::<Instant>)), Rc::new(Cell::new(false)));
        let (asked, told) = (deadline.clone(), is_interrupted.clone());
        runtime.set_interrupt_handler(Some(Box::new(move || {
            let is_over = asked.get().is_some_and(|deadline| Instant::now() >= deadline);
            told.set(told.get() || is_over);
            is_over
        })));
        let context = Context::custom::<Intrinsics>(&runtime).map_err(|_| Failure::Fatal(TOO_LARGE))?;
        let api = context
            .with(|ctx| {
                let prelude: Function = ctx.eval_with_options(PRELUDE, options())?;
                let api: Object = prelude.call((Func::from(compile),))?;
                api.get::<_, Function>("open")?.call::<_, ()>((design,))?;
                Ok(Persistent::save(&ctx, api))
            })
            .map_err(|_: rquickjs::Error| Failure::Fatal(TOO_LARGE))?;
        Ok(Engine { deadline, is_interrupted, time: bounds.time, api, context })
    }

    /// Runs `work` on each of `calls` lists of arguments; `answer` gets what each came to: `+` and a result as JSON, or `-` and what
    /// was thrown.
    pub(super) fn call<'a>(
        &self,
        verb: &str,
        path: &str,
        calls: &mut dyn FnMut() -> Option<Vec<&'a str>>,
        answer: &mut dyn FnMut(&str),
    ) -> Result<Vec<String>, Failure> {
        self.context.with(|ctx| {
            let api = self.api.clone().restore(&ctx).map_err(|_| Failure::Fatal(TOO_LARGE))?;
            let prepared = || -> rquickjs::Result<Function> {
                let prepare: Function = api.get("prepare")?;
                self.timed(|| prepare.call((verb, path)))
            };
            let function = prepared().map_err(|error| self.uncallable(&ctx, &api, &error))?;
            let mut run = || -> rquickjs::Result<Vec<String>> {
                while let Some(arguments) = calls() {
                    let text: rquickjs::String = self.timed(|| match arguments.as_slice() {
                        [one] => function.call((*one,)),
                        [one, two] => function.call((*one, *two)),
                        [one, two, three, four] => function.call((*one, *two, *three, *four)),
                        _ => function.call(()),
                    })?;
                    let text = text.to_string()?;
                    if text.starts_with('-') && text.contains(OUT_OF_MEMORY) {
                        return Err(rquickjs::Error::Allocation);
                    }
                    answer(&text);
                }
                api.get::<_, Function>("takeLines")?.call(())
            };
            // What functions throw is among the answers, so what comes out here is the engine's.
            run().map_err(|_| self.fatal())
        })
    }

    fn timed<T>(&self, work: impl FnOnce() -> rquickjs::Result<T>) -> rquickjs::Result<T> {
        self.deadline.set(Some(Instant::now() + self.time));
        let done = work();
        self.deadline.set(None);
        // A function that swallows the interruption has still been too long.
        if self.is_interrupted.get() { Err(rquickjs::Error::Exception) } else { done }
    }

    fn fatal(&self) -> Failure {
        Failure::Fatal(if self.is_interrupted.get() { TOO_LONG } else { TOO_LARGE })
    }

    /// Why a function can't be called.
    fn uncallable<'js>(&self, ctx: &Ctx<'js>, api: &Object<'js>, error: &rquickjs::Error) -> Failure {
        let described = || -> rquickjs::Result<Option<String>> {
            let thrown = ctx.catch();
            if !error.is_exception() || thrown.is_null() {
                return Ok(None);
            }
            api.get::<_, Function>("describe")?.call((thrown,))
        };
        match described() {
            Ok(Some(text)) if !self.is_interrupted.get() && !text.contains(OUT_OF_MEMORY) => Failure::Uncallable(text),
            _ => self.fatal(),
        }
    }
}

fn options() -> EvalOptions {
    let mut options = EvalOptions::default();
    options.strict = false;
    options
}

/// The value of an expression: old functions are written as one, with semicolons after it.
fn compile<'js>(ctx: Ctx<'js>, source: String) -> rquickjs::Result<Value<'js>> {
    let expression = source.trim_end().trim_end_matches([';', ' ', '\t', '\r', '\n']);
    ctx.eval_with_options(format!("({expression}\n)"), options())
}

/// An engine by itself: the process around it, and whoever watches that, have bounds of their own, so that a worker ends even where these
/// are missing.
#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    /// What a map function comes to. One that is never ended is left on its thread.
    fn outcome(body: &str, time: Duration) -> Result<Vec<String>, Failure> {
        let map = format!("function(doc) {{ {body} }}");
        let design = serde_json::json!({"views": {"v": {"map": map}}}).to_string();
        let bounds = Bounds { time, memory_bytes: 16 << 20 };
        let (tell, told) = mpsc::channel();
        let run = move || {
            let mut answers = Vec::new();
            let mut calls = vec![vec!["{}"]];
            let called = Engine::new(&design, bounds).and_then(|engine| {
                let path = r#"["views","v","map"]"#;
                engine.call("map", path, &mut || calls.pop(), &mut |answer| answers.push(answer.to_owned()))
            });
            tell.send(called.map(|_| answers)).ok();
        };
        thread::Builder::new().stack_size(8 << 20).spawn(run).unwrap();
        told.recv_timeout(Duration::from_secs(120)).unwrap_or_else(|_| panic!("nothing ends it: {body}"))
    }

    #[test]
    fn what_goes_on_for_ever_is_interrupted() {
        for body in [
            "while (true) {}",
            "for (;;) { try { while (true) {} } catch (e) {} }",
            "/^(a+)+$/.test('a'.repeat(60) + 'b')",
            "emit({toJSON: function() { while (true) {} }})",
        ] {
            let ended = outcome(body, Duration::from_millis(200));
            assert!(matches!(ended, Err(Failure::Fatal(TOO_LONG))), "{body}: {ended:?}");
        }
    }

    #[test]
    fn what_takes_too_much_is_refused() {
        let taking = |count: u32| {
            let body =
                format!("var a = []; for (var i = 0; i < {count}; i++) a.push(new Uint8Array(1 << 20)); emit(i)");
            outcome(&body, Duration::from_secs(60))
        };
        assert_eq!(taking(4).unwrap(), ["+[[4,null]]"]);
        let refused = taking(64);
        assert!(matches!(refused, Err(Failure::Fatal(TOO_LARGE))), "{refused:?}");
    }

    #[test]
    fn what_calls_itself_for_ever_is_told() {
        let depth = "var depth = 0; (function f() { depth++; f() })";
        let answers = outcome(&format!("{depth}()"), Duration::from_secs(60)).unwrap();
        assert!(answers[0].starts_with('-') && answers[0].contains("stack"), "{answers:?}");
        let answers =
            outcome(&format!("try {{ {depth}() }} catch (e) {{ emit(depth < 20000) }}"), Duration::from_secs(60));
        assert_eq!(answers.unwrap(), ["+[[true,null]]"], "as deep as the stack that it may have, and no deeper");
    }
}
