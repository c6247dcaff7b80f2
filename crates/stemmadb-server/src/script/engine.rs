//! The JavaScript engine of a worker, with the functions of one design document.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rquickjs::context::{EvalOptions, intrinsic as with};
use rquickjs::function::Func;
use rquickjs::{Context, Ctx, Function, Object, Persistent, Runtime, Value};

/// The available parts of the language: everything except clocks finer than a millisecond.
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
const RENDER: &str = include_str!("render.js");
/// The engine's exception for an allocation beyond its memory limit.
const OUT_OF_MEMORY: &str = "\"reason\":\"out of memory\"";
/// The result of a call that threw `null`.
const THROWN_NULL: &str = r#"-{"error":"unnamed_error","reason":"null"}"#;
const STACK_BYTES_MAX: usize = 512 << 10;

/// The limits of a call.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallLimits {
    pub(super) time: Duration,
    pub(super) memory_bytes: usize,
}

/// A failure of the engine, as opposed to an exception of a function.
#[derive(Debug)]
pub(super) enum EngineFailure {
    /// The function is missing or can't be compiled: error and reason, as JSON.
    Uncallable(String),
    /// A call took too long, or too much memory. The engine must not be used again.
    Fatal(&'static str),
}

/// The code for a function that took too long.
pub(super) const TOO_LONG: &str = "timeout";
/// The code for a function that took too much memory.
pub(super) const TOO_LARGE: &str = "memory";

/// A JavaScript engine.
pub(super) struct Engine {
    deadline: Rc<Cell<Option<Instant>>>,
    is_interrupted: Rc<Cell<bool>>,
    time: Duration,
    /// Whether a thrown `null` may be an exception of a function. Otherwise the engine throws it, when it lacks the
    /// memory for an exception that says that it is out of memory.
    throws_null: bool,
    api: Persistent<Object<'static>>,
    context: Context,
}

impl Engine {
    /// Creates an engine for the design document `design`, given as JSON.
    pub(super) fn new(design: &str, limits: CallLimits) -> Result<Self, EngineFailure> {
        let runtime = Runtime::new().map_err(|_| EngineFailure::Fatal(TOO_LARGE))?;
        runtime.set_memory_limit(limits.memory_bytes);
        runtime.set_max_stack_size(STACK_BYTES_MAX);
        let (deadline, is_interrupted) = (Rc::new(Cell::new(None::<Instant>)), Rc::new(Cell::new(false)));
        let (current_deadline, interrupted) = (deadline.clone(), is_interrupted.clone());
        runtime.set_interrupt_handler(Some(Box::new(move || {
            let is_over = current_deadline.get().is_some_and(|deadline| Instant::now() >= deadline);
            interrupted.set(interrupted.get() || is_over);
            is_over
        })));
        let context = Context::custom::<Intrinsics>(&runtime).map_err(|_| EngineFailure::Fatal(TOO_LARGE))?;
        let api = context
            .with(|ctx| {
                let prelude: Function = ctx.eval_with_options(PRELUDE, options())?;
                let make_renderer: Function = ctx.eval_with_options(RENDER, options())?;
                let api: Object = prelude.call((Func::from(compile), make_renderer))?;
                api.get::<_, Function>("open")?.call::<_, ()>((design,))?;
                Ok(Persistent::save(&ctx, api))
            })
            .map_err(|_: rquickjs::Error| EngineFailure::Fatal(TOO_LARGE))?;
        let throws_null = design.contains("throw null");
        Ok(Engine { deadline, is_interrupted, time: limits.time, throws_null, api, context })
    }

    /// Calls a function once for each list of arguments from `calls`. `answer` receives each result: `+` and JSON, or
    /// `-` and the exception. Returns the logged lines.
    pub(super) fn call<'a>(
        &self,
        kind: &str,
        path: &str,
        calls: &mut dyn FnMut() -> Option<Vec<&'a str>>,
        answer: &mut dyn FnMut(&str),
    ) -> Result<Vec<String>, EngineFailure> {
        self.context.with(|ctx| {
            let api = self.api.clone().restore(&ctx).map_err(|_| EngineFailure::Fatal(TOO_LARGE))?;
            let prepared = || -> rquickjs::Result<Function> {
                let prepare: Function = api.get("prepare")?;
                self.timed(|| prepare.call((kind, path)))
            };
            let function = prepared().map_err(|error| self.uncallable(&ctx, &api, &error))?;
            let mut run = || -> rquickjs::Result<Vec<String>> {
                while let Some(arguments) = calls() {
                    let text: rquickjs::String = self.timed(|| match arguments.as_slice() {
                        [one] => function.call((*one,)),
                        [one, two] => function.call((*one, *two)),
                        [one, two, three] => function.call((*one, *two, *three)),
                        [one, two, three, four] => function.call((*one, *two, *three, *four)),
                        _ => function.call(()),
                    })?;
                    let text = text.to_string()?;
                    let is_null = text == THROWN_NULL && !self.throws_null;
                    if is_null || (text.starts_with('-') && text.contains(OUT_OF_MEMORY)) {
                        return Err(rquickjs::Error::Allocation);
                    }
                    answer(&text);
                }
                api.get::<_, Function>("takeLines")?.call(())
            };
            // Exceptions of functions are results, so errors here are failures of the engine.
            run().map_err(|_| self.fatal())
        })
    }

    fn timed<T>(&self, work: impl FnOnce() -> rquickjs::Result<T>) -> rquickjs::Result<T> {
        self.deadline.set(Some(Instant::now() + self.time));
        let done = work();
        self.deadline.set(None);
        // A function that catches the interruption has still exceeded its time.
        if self.is_interrupted.get() { Err(rquickjs::Error::Exception) } else { done }
    }

    fn fatal(&self) -> EngineFailure {
        EngineFailure::Fatal(if self.is_interrupted.get() { TOO_LONG } else { TOO_LARGE })
    }

    /// Converts an error of preparing a function.
    fn uncallable<'js>(&self, ctx: &Ctx<'js>, api: &Object<'js>, error: &rquickjs::Error) -> EngineFailure {
        let described = || -> rquickjs::Result<Option<String>> {
            let thrown = ctx.catch();
            if !error.is_exception() || thrown.is_null() {
                return Ok(None);
            }
            api.get::<_, Function>("describe")?.call((thrown,))
        };
        match described() {
            Ok(Some(text)) if !self.is_interrupted.get() && !text.contains(OUT_OF_MEMORY) => {
                EngineFailure::Uncallable(text)
            }
            _ => self.fatal(),
        }
    }
}

fn options() -> EvalOptions {
    let mut options = EvalOptions::default();
    options.strict = false;
    options
}

/// Evaluates a function expression, which may end with semicolons.
fn compile<'js>(ctx: Ctx<'js>, source: String) -> rquickjs::Result<Value<'js>> {
    let expression = source.trim_end().trim_end_matches([';', ' ', '\t', '\r', '\n']);
    ctx.eval_with_options(format!("({expression}\n)"), options())
}

/// Tests the engine without a process around it, whose own limits would hide missing ones here.
#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    /// The result of a map function. One that never ends is left on its thread.
    fn outcome(body: &str, time: Duration) -> Result<Vec<String>, EngineFailure> {
        let map = format!("function(doc) {{ {body} }}");
        let design = serde_json::json!({"views": {"v": {"map": map}}}).to_string();
        let limits = CallLimits { time, memory_bytes: 16 << 20 };
        let (sender, receiver) = mpsc::channel();
        let run = move || {
            let mut answers = Vec::new();
            let mut calls = vec![vec!["{}"]];
            let called = Engine::new(&design, limits).and_then(|engine| {
                let path = r#"["views","v","map"]"#;
                engine.call("map", path, &mut || calls.pop(), &mut |answer| answers.push(answer.to_owned()))
            });
            sender.send(called.map(|_| answers)).ok();
        };
        thread::Builder::new().stack_size(8 << 20).spawn(run).unwrap();
        receiver.recv_timeout(Duration::from_secs(120)).unwrap_or_else(|_| panic!("nothing ends it: {body}"))
    }

    #[test]
    fn endless_functions_are_interrupted() {
        for body in [
            "while (true) {}",
            "for (;;) { try { while (true) {} } catch (e) {} }",
            "/^(a+)+$/.test('a'.repeat(60) + 'b')",
            "emit({toJSON: function() { while (true) {} }})",
        ] {
            let ended = outcome(body, Duration::from_millis(200));
            assert!(matches!(ended, Err(EngineFailure::Fatal(TOO_LONG))), "{body}: {ended:?}");
        }
    }

    #[test]
    fn functions_are_limited_in_memory() {
        let taking = |count: u32| {
            let body =
                format!("var a = []; for (var i = 0; i < {count}; i++) a.push(new Uint8Array(1 << 20)); emit(i)");
            outcome(&body, Duration::from_secs(60))
        };
        assert_eq!(taking(4).unwrap(), ["+[[4,null]]"]);
        let refused = taking(64);
        assert!(matches!(refused, Err(EngineFailure::Fatal(TOO_LARGE))), "{refused:?}");
    }

    #[test]
    fn exhausted_memory_is_not_an_exception() {
        let minute = Duration::from_secs(60);
        for body in ["var a = []; while (true) a.push({})", "var o = {}; for (var i = 0; ; i++) o['k' + i] = i"] {
            let exhausted = outcome(body, minute);
            assert!(matches!(exhausted, Err(EngineFailure::Fatal(TOO_LARGE))), "{body}: {exhausted:?}");
        }
        assert_eq!(outcome("throw null", minute).unwrap(), [THROWN_NULL]);
    }

    #[test]
    fn endless_recursion_is_an_exception() {
        let depth = "var depth = 0; (function f() { depth++; f() })";
        let answers = outcome(&format!("{depth}()"), Duration::from_secs(60)).unwrap();
        assert!(answers[0].starts_with('-') && answers[0].contains("stack"), "{answers:?}");
        let answers =
            outcome(&format!("try {{ {depth}() }} catch (e) {{ emit(depth < 20000) }}"), Duration::from_secs(60));
        assert_eq!(answers.unwrap(), ["+[[true,null]]"], "as deep as the stack that it may have, and no deeper");
    }
}
