// The environment of a design document's functions. Evaluated once in a fresh context, with a function that compiles
// an expression, and the function of `render.js`. Returns the host's functions, whose arguments and results are JSON texts.
(function (compile, makeRenderer) {
  "use strict";
  const global = globalThis;
  const { parse, stringify } = JSON;
  const { getOwnPropertyDescriptor, getPrototypeOf, defineProperty, freeze } = Object;
  const { ownKeys, deleteProperty, apply } = Reflect;
  const isArray = Array.isArray;
  const uncurry = (method) => (self, ...rest) => apply(method, self, rest);
  const hasOwn = uncurry(Object.prototype.hasOwnProperty);
  const split = uncurry(String.prototype.split);
  const slice = uncurry(String.prototype.slice);
  const join = uncurry(Array.prototype.join);
  const [get, set] = [uncurry(Map.prototype.get), uncurry(Map.prototype.set)];

  const LOG_LINES_MAX = 100;
  const LOG_CHARACTERS_MAX = 1000;

  let design = {};
  let rows = [];
  let lines = [];
  const functions = new Map();
  const modules = new Map();

  // ---- functions available to design documents

  const toJSON = (value) => {
    const text = stringify(value);
    return text === undefined ? "null" : text;
  };
  const helpers = {
    emit(key, value) {
      rows[rows.length] = [key, value];
    },
    sum(values) {
      let total = 0;
      for (let at = 0; at < values.length; at++) total += values[at];
      return total;
    },
    isArray(value) {
      return isArray(value);
    },
    toJSON(value) {
      return toJSON(value);
    },
    log(message) {
      if (lines.length < LOG_LINES_MAX) {
        lines[lines.length] = slice(typeof message === "string" ? message : toJSON(message), 0, LOG_CHARACTERS_MAX);
      }
    },
    require(path) {
      return load(path, []);
    },
  };

  class Refusal {
    constructor(error, reason) {
      this.error = error;
      this.reason = reason;
    }
  }

  const renderer = makeRenderer({ parse, slice, call: (fun, given) => apply(fun, design, given), Refusal });
  for (const name of ownKeys(renderer.helpers)) helpers[name] = renderer.helpers[name];

  const find = (names) => {
    let found = design;
    for (let at = 0; at < names.length; at++) {
      if (typeof found !== "object" || found === null || !hasOwn(found, names[at])) return undefined;
      found = found[names[at]];
    }
    return found;
  };

  // Resolves a CommonJS module of the design document, relative to the module in `directory`.
  const load = (path, directory) => {
    const parts = split(`${path}`, "/");
    const names = [];
    if (parts[0] === "." || parts[0] === "..") for (const name of directory) names[names.length] = name;
    for (const part of parts) {
      if (part === "..") {
        if (names.length === 0) throw new Refusal("invalid_require_path", `${path} leads out of the design document`);
        names.length -= 1;
      } else if (part !== ".") {
        names[names.length] = part;
      }
    }
    const id = join(names, "/");
    const known = get(modules, id);
    if (known !== undefined) return known.exports;
    const source = find(names);
    if (typeof source !== "string") {
      throw new Refusal("invalid_require_path", `there is no module ${id} in the design document`);
    }
    const module = { id, exports: {} };
    set(modules, id, module);
    const within = [];
    for (let at = 0; at + 1 < names.length; at++) within[at] = names[at];
    const body = compile(`function (module, exports, require) {${source}\n}`);
    apply(body, module, [module, module.exports, (wanted) => load(wanted, within)]);
    return module.exports;
  };

  // ---- restoring changed globals between calls

  const placeHelpers = () => {
    for (const name of helperNames) {
      defineProperty(global, name, { value: helpers[name], writable: true, configurable: true, enumerable: false });
    }
  };
  const helperNames = ownKeys(helpers);
  const tidy = () => {
    for (const name in global) deleteProperty(global, name);
    for (let at = 0; at < helperNames.length; at++) {
      if (global[helperNames[at]] !== helpers[helperNames[at]]) return placeHelpers();
    }
  };

  // ---- functions for the host

  const text = (value) => {
    try {
      return slice(`${value}`, 0, LOG_CHARACTERS_MAX);
    } catch {
      return "something that can't be described";
    }
  };

  // Converts any thrown value to an error and a reason.
  const describe = (thrown) => {
    try {
      if (thrown instanceof Refusal) return { error: thrown.error, reason: thrown.reason };
      if (isArray(thrown)) {
        if (thrown.length === 3) return { error: text(thrown[1]), reason: text(thrown[2]) };
        return { error: text(thrown[0]), reason: text(thrown[1]) };
      }
      if (typeof thrown === "object" && thrown !== null) {
        for (const error of ["forbidden", "unauthorized"]) {
          if (thrown[error] !== undefined) {
            const reason = thrown[error];
            return { error, reason: typeof reason === "string" ? reason : toJSON(reason) };
          }
        }
        if (thrown instanceof Error) return { error: text(thrown.name), reason: text(thrown.message) };
      }
    } catch {
      // Its getters throw.
    }
    return { error: "unnamed_error", reason: text(thrown) };
  };

  // Every result is text: `+` and JSON, or `-` and the exception.
  const guarded = (work) => (...given) => {
    try {
      return `+${toJSON(work(...given))}`;
    } catch (thrown) {
      return `-${toJSON(describe(thrown))}`;
    } finally {
      tidy();
    }
  };

  const value = (json) => (json === "" ? null : parse(json));
  const host = {
    map: (call) => (doc) => {
      rows = [];
      try {
        apply(call, design, [parse(doc)]);
        return `+${stringify(rows)}`;
      } catch (thrown) {
        return `-${toJSON(describe(thrown))}`;
      } finally {
        rows = [];
        tidy();
      }
    },
    reduce: (call) => guarded((keys, values) => apply(call, design, [parse(keys), parse(values), false])),
    rereduce: (call) => guarded((values) => apply(call, design, [null, parse(values), true])),
    filter: (call) => guarded((doc, request) => !!apply(call, design, [parse(doc), value(request)])),
    view_filter: (call) =>
      guarded((doc) => {
        rows = [];
        apply(call, design, [parse(doc)]);
        return rows.length > 0;
      }),
    validate: (call) =>
      guarded((doc, before, user, security) => {
        apply(call, design, [parse(doc), value(before), value(user), value(security)]);
        return true;
      }),
    update: (call) => guarded((doc, request) => apply(call, design, [value(doc), value(request)])),
    show: (call) => guarded((doc, request) => renderer.show(call, value(doc), parse(request))),
    list: (call) => guarded((head, request, lines) => renderer.list(call, parse(head), parse(request), lines)),
    trigger: (call) => guarded((doc, event) => apply(call, design, [parse(doc), parse(event)])),
    conflict: (call) =>
      guarded((versions, ancestor) => apply(call, design, [parse(versions), parse(ancestor)])),
    rewrite: (call) => guarded((request) => apply(call, design, [parse(request)])),
  };

  const api = {
    open(source) {
      design = parse(source);
    },
    // Prepares the call kind `verb` for the design document's function at `path` (names, as JSON).
    prepare(verb, path) {
      const id = `${verb} ${path}`;
      const known = get(functions, id);
      if (known !== undefined) return known;
      const source = find(parse(path));
      if (source === undefined) throw new Refusal("not_found", `missing function at ${path}`);
      if (typeof source !== "string") throw new Refusal("compilation_error", `what is at ${path} is no function`);
      let call;
      try {
        call = compile(source);
      } catch (thrown) {
        const { error, reason } = describe(thrown);
        throw new Refusal("compilation_error", `${error}: ${reason} (${slice(source, 0, 200)})`);
      }
      if (typeof call !== "function") {
        throw new Refusal("compilation_error", `expression does not eval to a function. (${slice(source, 0, 200)})`);
      }
      const made = host[verb](call);
      set(functions, id, made);
      return made;
    },
    describe(thrown) {
      return toJSON(describe(thrown));
    },
    takeLines() {
      const taken = lines;
      lines = [];
      return taken;
    },
  };

  // ---- built-in objects are frozen, so that no call can leave state for another

  const refuse = function () {
    throw new EvalError("no code is made from text here");
  };
  const makers = [function () {}, function* () {}, async function () {}, async function* () {}];
  for (const maker of makers) {
    const prototype = getPrototypeOf(maker);
    defineProperty(prototype, "constructor", { value: refuse, writable: false, configurable: false });
  }
  defineProperty(refuse, "prototype", { value: Function.prototype });
  global.Function = refuse;
  for (const name of ["eval", "SharedArrayBuffer", "Atomics", "queueMicrotask"]) deleteProperty(global, name);

  // Objects may still define own properties with these inherited names, which programs do assign.
  const overridable = (prototype) => {
    for (const key of ownKeys(prototype)) {
      const found = getOwnPropertyDescriptor(prototype, key);
      if (!hasOwn(found, "value") || !found.configurable) continue;
      const inherited = found.value;
      defineProperty(prototype, key, {
        get() {
          return inherited;
        },
        set(own) {
          if (this === prototype) throw new TypeError(`${text(key)} of what is built in can't be changed`);
          if (hasOwn(this, key)) this[key] = own;
          else defineProperty(this, key, { value: own, writable: true, enumerable: true, configurable: true });
        },
        enumerable: false,
        configurable: false,
      });
    }
  };
  const errors = [Error, EvalError, RangeError, ReferenceError, SyntaxError, TypeError, URIError];
  for (const maker of [Object, Function, ...errors]) overridable(maker.prototype);

  const seen = new Set();
  const waiting = [
    ...makers,
    [][Symbol.iterator](),
    ""[Symbol.iterator](),
    new Map()[Symbol.iterator](),
    new Set()[Symbol.iterator](),
    /./[Symbol.matchAll](""),
    (function* () {})(),
    (async function* () {})(),
  ];
  for (const name of ownKeys(global)) {
    const found = getOwnPropertyDescriptor(global, name);
    if (hasOwn(found, "value") && found.value !== global) {
      waiting.push(found.value);
      defineProperty(global, name, { writable: false, configurable: false });
    }
  }
  while (waiting.length > 0) {
    const one = waiting.pop();
    if ((typeof one !== "object" && typeof one !== "function") || one === null || one === global || seen.has(one)) continue;
    seen.add(one);
    waiting.push(getPrototypeOf(one));
    for (const key of ownKeys(one)) {
      const found = getOwnPropertyDescriptor(one, key);
      waiting.push(found.value, found.get, found.set);
    }
    freeze(one);
  }
  for (const name of helperNames) freeze(helpers[name]);
  placeHelpers();
  return api;
});
