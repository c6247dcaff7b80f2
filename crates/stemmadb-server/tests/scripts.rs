//! Functions of design documents in real worker processes: their environment, and the limits on hostile functions.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stemmadb_server::script::{CallKind, Context, ScriptError, ScriptLimits, Scripts, ThrownError, WorkerCommand};

fn launch() -> WorkerCommand {
    WorkerCommand { program: PathBuf::from(env!("CARGO_BIN_EXE_stemma-script-worker")), arguments: Vec::new() }
}

fn scripts() -> Scripts {
    Scripts::new(launch(), ScriptLimits { worker_count: 2, ..ScriptLimits::default() })
}

/// Workers with short limits.
fn strict_scripts() -> Scripts {
    Scripts::new(launch(), ScriptLimits { time: Duration::from_secs(1), memory_bytes: 16 << 20, worker_count: 1 })
}

fn context(key: &str, design: &Value) -> Context {
    Context { key: key.into(), design: design.to_string().into() }
}

fn map_design(map: &str) -> Value {
    json!({"views": {"v": {"map": map}}})
}

/// The rows that a map function emits for each document.
fn try_map(scripts: &Scripts, design: &Value, docs: &[Value]) -> Result<Vec<Result<Value, ThrownError>>, ScriptError> {
    let calls: Vec<[String; 1]> = docs.iter().map(|doc| [doc.to_string()]).collect();
    let context = context(&design.to_string(), design);
    let answers = scripts.call(&context, CallKind::Map, &["views", "v", "map"], &calls)?;
    Ok(answers.into_iter().map(|answer| answer.map(|text| serde_json::from_str(&text).unwrap())).collect())
}

fn mapped(map: &str, docs: &[Value]) -> Vec<Result<Value, ThrownError>> {
    try_map(&scripts(), &map_design(map), docs).unwrap()
}

fn rows(map: &str, doc: Value) -> Value {
    mapped(map, &[doc]).remove(0).unwrap()
}

fn one(
    scripts: &Scripts,
    design: &Value,
    verb: CallKind,
    path: &[&str],
    arguments: &[Value],
) -> Result<Value, ThrownError> {
    let call: Vec<String> = arguments.iter().map(Value::to_string).collect();
    let mut answers = scripts.call(&context(&design.to_string(), design), verb, path, &[call]).unwrap();
    answers.remove(0).map(|text| serde_json::from_str(&text).unwrap())
}

#[test]
fn map_function_emits_rows() {
    assert_eq!(
        rows(
            "function(doc) { emit(doc.year, doc.title); emit([doc.year], null); }",
            json!({"year": 1961, "title": "Solaris"})
        ),
        json!([[1961, "Solaris"], [[1961], null]])
    );
    assert_eq!(rows("function(doc) { emit(); emit(undefined, NaN); }", json!({})), json!([[null, null], [null, null]]));
    assert_eq!(
        rows("function(doc) { emit(new Date(0), {a: undefined}); }", json!({})),
        json!([["1970-01-01T00:00:00.000Z", {}]])
    );
    assert_eq!(
        rows("function(doc) { emit(doc._id, 'ä😀\\u0000'); }", json!({"_id": "ä😀\u{0}"})),
        json!([["ä😀\u{0}", "ä😀\u{0}"]])
    );
}

#[test]
fn function_syntax_variants_are_accepted() {
    let ways = [
        "function(doc) { emit(1) }",
        "function(doc) { emit(1) };",
        "function(doc) { emit(1) } ; ;\n",
        "function named(doc) { emit(1) }",
        "(function(doc) { emit(1) })",
        "(doc) => { emit(1) }",
        "doc => emit(1);",
        "// first a comment\nfunction(doc) { emit(1) } // and last",
        "/* a comment */ function(doc) { emit(1) } /* a comment */",
        "\n\t function (doc)\n{\n  for (i = 0; i < 1; i++) emit(1)\n}\n",
        "(function() { var one = 1; return function(doc) { emit(one) } })()",
    ];
    for way in ways {
        assert_eq!(rows(way, json!({})), json!([[1, null]]), "{way}");
    }
}

#[test]
fn invalid_functions_are_reported() {
    for (source, said) in
        [("function(doc) { emit(1", "compilation_error"), ("17", "compilation_error"), ("", "compilation_error")]
    {
        let failed = try_map(&scripts(), &map_design(source), &[json!({})]).unwrap_err();
        let ScriptError::Uncallable(thrown) = failed else { panic!("{source}: {failed:?}") };
        assert_eq!(thrown.error, said, "{source}: {}", thrown.reason);
    }
    let scripts = scripts();
    for design in [json!({}), json!({"views": {"v": {"map": 5}}}), json!({"views": null})] {
        let failed = try_map(&scripts, &design, &[json!({})]).unwrap_err();
        assert!(matches!(failed, ScriptError::Uncallable(_)), "{failed:?}");
    }
    // The worker continues.
    assert_eq!(
        try_map(&scripts, &map_design("function(doc) {emit(1)}"), &[json!({})]).unwrap()[0],
        Ok(json!([[1, null]]))
    );
    assert!(scripts.worker_count() <= 2);
}

#[test]
fn helpers_behave_like_couchdb() {
    assert_eq!(
        rows("function(doc) { emit(sum([1, 2, 3.5]), isArray([]) && !isArray({})); }", json!({})),
        json!([[6.5, true]])
    );
    assert_eq!(
        rows("function(doc) { log('x'); log({a: 1}); emit(toJSON({b: [1]})); }", json!({})),
        json!([["{\"b\":[1]}", null]])
    );
}

#[test]
fn modules_are_required_from_the_design_document() {
    let design = json!({"views": {
        "lib": {
            "a": "exports.one = 1; exports.two = require('./b').two; exports.three = \
            require('views/lib/deep/c').three; exports.id = module.id;",
            "b": "module.exports = {two: 2}",
            "deep": {"c": "exports.three = require('../b').two + 1 // a comment"},
            "round": "exports.before = 1; exports.seen = require('./trip').seen;",
            "trip": "exports.seen = require('./round').before;",
        },
        "v": {"map": "function(doc) { var a = require('views/lib/a'); emit([a.one, a.two, a.three, a.id], \
        require('views/lib/round').seen); }"},
    }});
    assert_eq!(try_map(&scripts(), &design, &[json!({})]).unwrap()[0], Ok(json!([[[1, 2, 3, "views/lib/a"], 1]])));
    let design = json!({"views": {"v": {"map": "function(doc) { require(doc.path) }"}, "x": "exports.x = ; "}});
    for path in ["nothing", "../../x", "views", "constructor", "views/__proto__", "views/x"] {
        let failed = try_map(&scripts(), &design, &[json!({"path": path})]).unwrap().remove(0).unwrap_err();
        assert!(["invalid_require_path", "SyntaxError"].contains(&&*failed.error), "{path}: {failed:?}");
    }
}

#[test]
fn reductions_filters_validations_and_updates() {
    let scripts = scripts();
    let design = json!({
        "views": {"v": {
            "map": "function(doc) { if (doc.is) emit(1) }",
            "reduce": "function(keys, values, rereduce) { if (rereduce) return sum(values); return keys.length * 100 \
            + sum(values); }",
        }},
        "limit": 3,
        "filters": {"f": "function(doc, req) { return doc.n > req.query.n && doc.n < this.limit }"},
        "validate_doc_update": "function(newDoc, oldDoc, userCtx, secObj) {
            if (userCtx.roles.indexOf('_admin') >= 0) return;
            if (!newDoc.type) throw({forbidden: 'a document has a type'});
            if (oldDoc && oldDoc.owner !== userCtx.name) throw({unauthorized: 'not yours'});
            if (newDoc.odd) throw new TypeError('odd');
        }",
        "updates": {"u": "function(doc, req) { if (!doc) return [{_id: req.id}, 'new']; doc.n += 1; return [doc, \
        {json: {n: doc.n}}]; }"},
    });
    let reduce = &["views", "v", "reduce"];
    assert_eq!(one(&scripts, &design, CallKind::Reduce, reduce, &[json!([["k", "id"]]), json!([5])]), Ok(json!(105)));
    assert_eq!(one(&scripts, &design, CallKind::Rereduce, reduce, &[json!([1, 2])]), Ok(json!(3)));
    let filter = |n: i64| {
        one(&scripts, &design, CallKind::Filter, &["filters", "f"], &[json!({"n": n}), json!({"query": {"n": "1"}})])
    };
    assert_eq!((filter(1), filter(2), filter(3)), (Ok(json!(false)), Ok(json!(true)), Ok(json!(false))));
    let view = |is: bool| one(&scripts, &design, CallKind::ViewFilter, &["views", "v", "map"], &[json!({"is": is})]);
    assert_eq!((view(true), view(false)), (Ok(json!(true)), Ok(json!(false))));
    let validate = |new: Value, old: Value, user: Value| {
        one(&scripts, &design, CallKind::Validate, &["validate_doc_update"], &[new, old, user, json!({})])
    };
    let ann = json!({"name": "ann", "roles": []});
    let refused = |error: &str, reason: &str| Err(ThrownError { error: error.to_owned(), reason: reason.to_owned() });
    assert_eq!(validate(json!({"type": "x"}), Value::Null, ann.clone()), Ok(json!(true)));
    assert_eq!(validate(json!({}), Value::Null, ann.clone()), refused("forbidden", "a document has a type"));
    assert_eq!(
        validate(json!({"type": 1}), json!({"owner": "eve"}), ann.clone()),
        refused("unauthorized", "not yours")
    );
    assert_eq!(validate(json!({"type": 1, "odd": 1}), Value::Null, ann), refused("TypeError", "odd"));
    assert_eq!(validate(json!({}), Value::Null, json!({"name": "root", "roles": ["_admin"]})), Ok(json!(true)));
    let update = |doc: Value| one(&scripts, &design, CallKind::Update, &["updates", "u"], &[doc, json!({"id": "x"})]);
    assert_eq!(update(Value::Null), Ok(json!([{"_id": "x"}, "new"])));
    assert_eq!(update(json!({"n": 1})), Ok(json!([{"n": 2}, {"json": {"n": 2}}])));
}

#[test]
fn thrown_values_are_reported() {
    let thrown = [
        ("throw null", "unnamed_error"),
        ("throw undefined", "unnamed_error"),
        ("throw 17", "unnamed_error"),
        ("throw Symbol('s')", "unnamed_error"),
        ("throw {}", "unnamed_error"),
        ("throw {get forbidden() { throw 1 }}", "unnamed_error"),
        ("throw {toString: function() { throw 1 }}", "unnamed_error"),
        ("throw new Proxy({}, {get: function() { throw 2 }})", "unnamed_error"),
        ("throw {forbidden: {a: 1}}", "forbidden"),
        ("throw ['error', 'mine', 'because']", "mine"),
        ("throw new RangeError('r')", "RangeError"),
        ("undefined.x", "TypeError"),
        ("nothing.x", "ReferenceError"),
        ("var a = {}; a.a = a; emit(a)", "TypeError"),
        ("emit(10n)", "TypeError"),
        ("emit({toJSON: function() { throw ['x', 'y'] }})", "x"),
    ];
    let scripts = scripts();
    for (body, error) in thrown {
        let design = map_design(&format!("function(doc) {{ if (doc.bad) {{ {body} }} emit(1) }}"));
        let answers = try_map(&scripts, &design, &[json!({}), json!({"bad": true}), json!({})]).unwrap();
        assert_eq!(answers[1].as_ref().unwrap_err().error, error, "{body}: {:?}", answers[1]);
        assert_eq!((&answers[0], &answers[2]), (&Ok(json!([[1, null]])), &Ok(json!([[1, null]]))), "{body}");
    }
}

#[test]
fn no_state_remains_between_documents() {
    let docs = [json!({"n": 1}), json!({"n": 2})];
    // Reads what the call for the first document tried to leave behind.
    let tries = [
        "var found = typeof left; left = doc.n; emit(found)",
        "var found = typeof globalThis.left; globalThis.left = doc.n; emit(found)",
        "var found = typeof Object.prototype.left; try { Object.prototype.left = 1 } catch (e) {} emit(found)",
        "var found = typeof ({}).left; try { Object.defineProperty(Object.prototype, 'left', {value: 1}) } catch (e) \
        {} emit(found)",
        "var found = typeof [].left; try { ({}).__proto__.left = 1; [].__proto__.left = 1 } catch (e) {} emit(found)",
        "var found = typeof ''.left; try { String.prototype.left = 1 } catch (e) {} emit(found)",
        "var found = typeof (function*(){})().left; try { Object.getPrototypeOf((function*(){})()).left = 1; \
        (function*(){}).__proto__.prototype.left = 1 } catch (e) {} emit(found)",
        "var found = typeof JSON.left; try { JSON.left = 1; JSON.stringify = null; JSON.parse = null } catch (e) {} \
        emit(found)",
        "var found = typeof emit.left; try { emit.left = 1; } catch (e) {} emit(found)",
        "emit(typeof sum == 'function' ? 'undefined' : 'left'); sum = 1; log = 2;",
        "emit(typeof require == 'function' ? 'undefined' : 'left'); Object.defineProperty(globalThis, 'require', \
        {value: 7});",
        "emit(typeof Array.from == 'function' ? 'undefined' : 'left'); Array = 1; try { delete Object.keys; \
        Map.prototype.get = null; Array.prototype.push = null } catch (e) {}",
    ];
    for body in tries {
        let answers = mapped(&format!("function(doc) {{ {body} }}"), &docs);
        assert_eq!(answers, [Ok(json!([["undefined", null]])), Ok(json!([["undefined", null]]))], "{body}");
    }
    // A replaced `emit` is restored.
    let answers = mapped("function(doc) { var mine = emit; if (doc.n == 1) emit = function() {}; mine(doc.n) }", &docs);
    assert_eq!(answers, [Ok(json!([[1, null]])), Ok(json!([[2, null]]))]);
}

#[test]
fn inherited_names_can_be_used() {
    let source = "function(doc) {
        function Point(x) { this.x = x }
        Point.prototype.toString = function() { return 'P' + this.x };
        Point.prototype.constructor = Point;
        var own = {}; own.hasOwnProperty = 1; own.valueOf = 2;
        function Wrong() { this.message = 'm'; this.name = 'Wrong' } Wrong.prototype = new Error(); 
        var wrong = new Wrong();
        emit('' + new Point(3), [own.hasOwnProperty, own.valueOf, wrong.message, wrong.name, wrong instanceof Error, \
        Object.keys(own).length]);
    }";
    assert_eq!(rows(source, json!({})), json!([["P3", [1, 2, "m", "Wrong", true, 2]]]));
}

#[test]
fn eval_and_host_access_are_unavailable() {
    for body in [
        "eval('1')",
        "Function('return 1')()",
        "(function(){}).constructor('return 1')()",
        "(function*(){}).constructor('return 1')()",
        "(async function(){}).constructor('return 1')()",
        "Object.getPrototypeOf(function(){}).constructor('return 1')()",
        "[].map.constructor('return 1')()",
        "new (emit.constructor)('return 1')()",
    ] {
        let answer = mapped(&format!("function(doc) {{ emit({body}) }}"), &[json!({})]).remove(0);
        assert!(answer.is_err(), "{body}: {answer:?}");
    }
    let names = "['std', 'os', 'process', 'Deno', 'print', 'console', 'load', 'read', 'readline', 'XMLHttpRequest', \
    'fetch', 'WebSocket', 'Worker',
        'setTimeout', 'setInterval', 'performance', 'SharedArrayBuffer', 'Atomics', 'quit', 'gc', 'importScripts', \
        'bjson', 'scriptArgs', '__loadScript',
        'queueMicrotask', 'eval', 'DOMException', 'navigator']";
    assert_eq!(
        rows(
            &format!("function(doc) {{ {names}.forEach(function(n) {{ if (n in globalThis) emit(n) }}) }}"),
            json!({})
        ),
        json!([])
    );
    let answer = mapped("function(doc) { return import('os') }", &[json!({})]).remove(0);
    assert!(answer.is_err() || answer == Ok(json!([])), "{answer:?}");
    // The clock's resolution is a millisecond.
    assert_eq!(
        rows("function(doc) { var t = Date.now(); emit(t === Math.floor(t)) }", json!({})),
        json!([[true, null]])
    );
}

#[test]
fn contexts_are_isolated() {
    let scripts = Scripts::new(launch(), ScriptLimits { worker_count: 1, ..ScriptLimits::default() });
    let design = json!({"views": {"lib": {"m": "exports.kept = []"}, "v": {"map": "function(doc) {
        var kept = require('views/lib/m').kept; emit(kept.length); kept.push(doc.secret) }"}}});
    let call = |key: &str| {
        let answers = scripts
            .call(&context(key, &design), CallKind::Map, &["views", "v", "map"], &[["{\"secret\": 1}"]])
            .unwrap();
        answers[0].clone().unwrap()
    };
    assert_eq!(call("one/1"), "[[0,null]]");
    assert_eq!(call("two/1"), "[[0,null]]", "of another database");
    assert_eq!(call("one/1"), "[[0,null]]", "opened again");
    assert_eq!(scripts.worker_count(), 1);
}

#[test]
fn slow_functions_time_out() {
    for body in [
        "while (true) {}",
        "for (;;) { try { while (true) {} } catch (e) {} finally { continue } }",
        "/^(a+)+$/.test('aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab')",
        "var a = []; while (true) { a.length = 0; a.push(a.slice()) }",
        "emit({toJSON: function() { while (true) {} }})",
        "throw {get forbidden() { while (true) {} }}",
        "Array(1e9).join('').length; 'x'.repeat(1e7).split('').sort(function() { while (true) {} })",
        "new Array(4e9).indexOf(1); [].concat.apply([], {length: 1e9}); while (true) {}",
    ] {
        let scripts = strict_scripts();
        let started = Instant::now();
        let design = map_design(&format!("function(doc) {{ if (doc.bad) {{ {body} }} emit(1) }}"));
        let failed = try_map(&scripts, &design, &[json!({}), json!({"bad": 1}), json!({})]).unwrap_err();
        assert!(matches!(failed, ScriptError::Timeout(_) | ScriptError::TooLarge), "{body}: {failed:?}");
        assert!(started.elapsed() < Duration::from_secs(60), "{body}: {:?}", started.elapsed());
        assert_eq!(scripts.worker_count(), 0, "{body}");
        // A new worker runs the next function.
        assert!(try_map(&scripts, &design, &[json!({})]).is_ok());
    }
}

#[test]
fn memory_hungry_functions_are_stopped() {
    for body in [
        "'x'.repeat(1 << 29)",
        "var s = 'x'; while (true) s += s + 'y'",
        "var a = []; while (true) a.push(new Array(1000).fill(7))",
        "while (true) emit('a long key that is emitted for ever', {a: 1})",
        "new ArrayBuffer(1 << 30)",
        "var o = {}; for (var i = 0; ; i++) o['k' + i] = i",
        "var a = []; while (true) { try { a.push('x'.repeat(1 << 20) + a.length) } catch (e) { throw e } }",
    ] {
        let scripts =
            Scripts::new(launch(), ScriptLimits { memory_bytes: 16 << 20, worker_count: 1, ..ScriptLimits::default() });
        let design = map_design(&format!("function(doc) {{ if (doc.bad) {{ {body} }} emit(1) }}"));
        let failed = try_map(&scripts, &design, &[json!({"bad": 1})]);
        let is_bounded = match &failed {
            Err(ScriptError::TooLarge | ScriptError::Timeout(_)) => true,
            // Either the function's own error (a string or buffer was too long), or there was not enough memory left to
            // report the error.
            Ok(answers) => answers[0].is_err(),
            _ => false,
        };
        assert!(is_bounded, "{body}: {failed:?}");
        assert!(try_map(&scripts, &design, &[json!({})]).is_ok(), "{body}");
    }
}

#[test]
fn deep_recursion_is_an_error() {
    let nested = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
    for body in [
        "(function f() { f() })()",
        "(function f(n) { return f(n + 1) + 1 })(0)",
        "var o = {}; for (var i = 0; i < 100000; i++) o = {o: o}; emit(o)",
        "var o = {toString: function() { return '' + o }}; emit('' + o)",
        "emit(new RegExp('('.repeat(100000)))",
        &format!("JSON.parse('{nested}'); (function f() {{ f() }})()"),
    ] {
        let answers =
            mapped(&format!("function(doc) {{ if (doc.bad) {{ {body} }} emit(1) }}"), &[json!({"bad": 1}), json!({})]);
        assert!(answers[0].is_err(), "{body}: {:?}", answers[0]);
        assert_eq!(answers[1], Ok(json!([[1, null]])), "{body}");
    }
}

#[test]
fn promises_are_never_run() {
    let answers = mapped(
        "function(doc) { (function spin() { Promise.resolve().then(spin) })(); (async function() { await 1; \
        emit('late') })(); emit(1) }",
        &[json!({}), json!({})],
    );
    assert_eq!(answers, [Ok(json!([[1, null]])), Ok(json!([[1, null]]))]);
}

#[test]
fn lost_worker_is_reported_and_replaced() {
    let broken = Scripts::new(
        WorkerCommand { program: PathBuf::from("/bin/false"), arguments: Vec::new() },
        ScriptLimits::default(),
    );
    assert!(matches!(try_map(&broken, &map_design("doc => 1"), &[json!({})]), Err(ScriptError::Crashed(_))));
    let missing = Scripts::new(
        WorkerCommand { program: PathBuf::from("/nothing/here"), arguments: Vec::new() },
        ScriptLimits::default(),
    );
    assert!(matches!(try_map(&missing, &map_design("doc => 1"), &[json!({})]), Err(ScriptError::Crashed(_))));
    assert_eq!((broken.worker_count(), missing.worker_count()), (0, 0));
}

/// Runs `work`, and fails if it does not complete.
fn with_timeout<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(work()));
    receiver.recv_timeout(Duration::from_secs(120)).unwrap_or_else(|_| panic!("it does not complete: {what}"))
}

/// Even if the engine's own limits fail, the caller gets an error.
#[test]
fn silent_worker_times_out() {
    // The time and memory limits passed to the program act as further seconds to sleep.
    let silent = WorkerCommand { program: PathBuf::from("sleep"), arguments: vec!["1000".into()] };
    let bounded = ScriptLimits { time: Duration::from_millis(100), worker_count: 1, ..ScriptLimits::default() };
    let (failed, left) = with_timeout("a worker that sleeps", move || {
        let scripts = Scripts::new(silent, bounded);
        (try_map(&scripts, &map_design("doc => 1"), &[json!({})]), scripts.worker_count())
    });
    assert!(matches!(failed, Err(ScriptError::Timeout(_))), "{failed:?}");
    assert_eq!(left, 0);
}

/// The operating system restricts a worker in case its engine is compromised.
#[cfg(target_os = "linux")]
#[test]
fn worker_drops_privileges() {
    use std::process::{Command, Stdio};

    let mut command = Command::new(launch().program);
    let mut worker = command.args(["1000", "16777216"]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let receiver = |name: &str| std::fs::read_to_string(format!("/proc/{}/{name}", worker.id())).unwrap_or_default();
    let wanted = [
        ("limits", "Max address space", (272 << 20).to_string()),
        ("limits", "Max file size", "0".to_owned()),
        ("limits", "Max open files", "3".to_owned()),
        ("limits", "Max core file size", "0".to_owned()),
        ("status", "NoNewPrivs:", "1".to_owned()),
    ];
    let lost_privileges = || {
        let has = |file: &str, name: &str, value: &str| {
            let lines = receiver(file);
            let line = lines.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.split_whitespace().next()) == Some(value)
        };
        wanted.iter().find(|(file, name, value)| !has(file, name, value)).map(|(_, name, _)| *name)
    };
    let begun = Instant::now();
    while lost_privileges().is_some() && begun.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let lost_privileges = lost_privileges();
    drop(worker.stdin.take());
    worker.wait().unwrap();
    assert_eq!(lost_privileges, None, "the privilege is not dropped");
}

#[test]
fn threads_share_workers() {
    let scripts = scripts();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let scripts = &scripts;
            scope.spawn(move || {
                let design = map_design(&format!("function(doc) {{ emit([{thread}, doc.n]) }}"));
                for n in 0..20 {
                    assert_eq!(
                        try_map(scripts, &design, &[json!({"n": n})]).unwrap()[0],
                        Ok(json!([[[thread, n], null]]))
                    );
                }
            });
        }
    });
    assert!(scripts.worker_count() <= 2);
}

#[test]
fn large_batches_return_complete_and_in_order() {
    let docs: Vec<Value> = (0..5000).map(|n| json!({"n": n, "text": "x".repeat(1000)})).collect();
    let answers = mapped("function(doc) { emit(doc.n, doc.text) }", &docs);
    assert_eq!(answers.len(), docs.len());
    for (n, answer) in answers.into_iter().enumerate() {
        assert_eq!(answer.unwrap()[0][0], n);
    }
}
