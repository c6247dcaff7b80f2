// Shows and lists: the functions that are available to them, and how their responses are put together. Returns these
// functions, and how the host runs a show and a list. `call` calls a function of the design document.
(function (prelude) {
  "use strict";
  const { parse, slice, call, Refusal } = prelude;

  // The engine's own exception, which the host recognizes.
  const OUT_OF_MEMORY = "out of memory";

  const CONTENT_TYPES = [
    ["all", ["*/*"]],
    ["text", ["text/plain; charset=utf-8", "txt"]],
    ["html", ["text/html; charset=utf-8"]],
    ["xhtml", ["application/xhtml+xml", "xhtml"]],
    ["xml", ["application/xml", "text/xml", "application/x-xml"]],
    ["js", ["text/javascript", "application/javascript", "application/x-javascript"]],
    ["css", ["text/css"]],
    ["ics", ["text/calendar"]],
    ["csv", ["text/csv"]],
    ["rss", ["application/rss+xml"]],
    ["atom", ["application/atom+xml"]],
    ["yaml", ["application/x-yaml", "text/yaml"]],
    ["multipart_form", ["multipart/form-data"]],
    ["url_encoded_form", ["application/x-www-form-urlencoded"]],
    ["json", ["application/json", "text/x-json"]],
  ];

  // Parses one entry of an `Accept` header, or a content type.
  const parseRange = (text) => {
    const [full, ...parameters] = text.split(";").map((part) => part.trim());
    const [type, subtype] = (full === "*" ? "*/*" : full).toLowerCase().split("/");
    const given = {};
    for (const parameter of parameters) {
      const [name, value] = parameter.split("=");
      given[name.trim().toLowerCase()] = (value || "").trim();
    }
    const quality = given.q === undefined ? 1 : parseFloat(given.q);
    return { type, subtype, given, quality: quality >= 0 && quality <= 1 ? quality : 1 };
  };

  // How closely a range of the client describes a content type; 0 if it does not.
  const closeness = (range, offered) => {
    const matches = (a, b) => a === b || a === "*" || b === "*";
    if (!matches(range.type, offered.type) || !matches(range.subtype, offered.subtype)) return 0;
    let close = 1;
    if (range.type === offered.type) close += 100;
    if (range.subtype === offered.subtype) close += 10;
    for (const name in offered.given) if (name !== "q" && range.given[name] === offered.given[name]) close += 1;
    return close;
  };

  // The content type that the client accepts most precisely, the first of equal ones.
  const bestContentType = (offered, accept) => {
    const ranges = accept.split(",").map(parseRange);
    let best = { close: 0, quality: 0 };
    for (const contentType of offered) {
      const parsed = parseRange(contentType);
      let found = { close: 0, quality: 0 };
      for (const range of ranges) {
        const close = closeness(range, parsed);
        if (close > found.close) found = { close, quality: range.quality, contentType };
      }
      if (found.close > best.close || (found.close === best.close && found.quality > best.quality)) best = found;
    }
    return best.quality > 0 ? best.contentType : undefined;
  };

  // The state of a running show or list: what it registered and sent. `lines` are a list's rows as JSON, one a line.
  class Rendering {
    constructor(lines) {
      this.types = new Map(CONTENT_TYPES);
      this.providers = [];
      this.chunks = [];
      this.response = {};
      this.contentType = undefined;
      this.hasBegun = false;
      this.lines = lines;
      this.at = 0;
    }

    register(name, types) {
      this.types.set(name, types);
    }

    nextRow() {
      if (this.lines === undefined) throw new Refusal("render_error", "getRow is only for lists");
      if (this.chunks.length > 0) this.hasBegun = true;
      if (this.at >= this.lines.length) return null;
      const end = this.lines.indexOf("\n", this.at);
      const row = parse(slice(this.lines, this.at, end));
      this.at = end + 1;
      return row;
    }

    // Runs the function that provides what the client accepts.
    runProvider(request) {
      const accept = (request.headers || {}).Accept;
      const typesOf = (name) => this.types.get(name) || [];
      let chosen = this.providers[0][0];
      if (request.query && request.query.format) {
        chosen = request.query.format;
      } else if (accept) {
        const offered = this.providers.map(([name]) => typesOf(name)).flat();
        const best = bestContentType(offered, accept);
        chosen = (this.providers.find(([name]) => typesOf(name).includes(best)) || [])[0];
        this.contentType = best;
      }
      const found = this.providers.find(([name]) => name === chosen);
      if (found === undefined) {
        const offered = this.providers.map(([name]) => typesOf(name).join(", ") || name);
        const asked = accept || chosen;
        const reason = `Content-Type ${asked} not supported, try one of: ${offered.join(", ")}`;
        throw new Refusal("not_acceptable", reason);
      }
      this.contentType = this.contentType || typesOf(chosen)[0];
      return call(found[1], []);
    }

    // The response of what was sent, followed by what the function returned.
    finish(tail) {
      const response = typeof tail === "object" && tail !== null ? tail : { body: tail };
      const { code, headers } = this.response;
      if (response.code === undefined && code !== undefined) response.code = code;
      response.headers = { ...headers, ...response.headers };
      if (this.contentType && !Object.keys(response.headers).some((name) => name.toLowerCase() === "content-type")) {
        response.headers["Content-Type"] = this.contentType;
      }
      if (this.chunks.length > 0 || this.lines !== undefined) {
        response.body = this.chunks.join("") + (response.body === undefined ? "" : response.body);
      }
      return response;
    }
  }

  let rendering = new Rendering();

  // Runs a show or a list; its errors are those of rendering.
  const render = (lines, work) => {
    rendering = new Rendering(lines);
    try {
      return work(rendering);
    } catch (thrown) {
      if (thrown instanceof Error && thrown.message !== OUT_OF_MEMORY) {
        throw new Refusal("render_error", `function raised error: ${thrown.name}: ${thrown.message}`);
      }
      throw thrown;
    } finally {
      rendering = new Rendering();
    }
  };

  const helpers = {
    registerType(name, ...types) {
      rendering.register(name, types);
    },
    provides(name, provider) {
      rendering.providers.push([name, provider]);
    },
    start(response) {
      if (!rendering.hasBegun) rendering.response = response || {};
    },
    send(chunk) {
      rendering.chunks.push(chunk.toString());
    },
    getRow() {
      return rendering.nextRow();
    },
  };

  return {
    helpers,
    show: (fun, doc, request) => {
      const work = (state) => {
        const result = call(fun, [doc, request]) || {};
        if (state.providers.length === 0) {
          if (typeof result !== "object" && typeof result !== "string") {
            throw new Refusal("render_error", "undefined response from show function");
          }
          return state.finish(result);
        }
        const before = typeof result === "string" ? result : result.body || "";
        const { body, ...rest } = state.finish(state.runProvider(request));
        return { ...rest, body: before + (body === undefined ? "" : body) };
      };
      try {
        return render(undefined, work);
      } catch (thrown) {
        // As in CouchDB: a show that can't do without the document.
        if (doc === null && request.id !== null && thrown.message !== OUT_OF_MEMORY) {
          throw new Refusal("not_found", "document not found");
        }
        throw thrown;
      }
    },
    list: (fun, head, request, lines) =>
      render(lines, (state) => {
        const tail = call(fun, [head, request]);
        return state.finish(state.providers.length === 0 ? tail : state.runProvider(request));
      }),
  };
});
