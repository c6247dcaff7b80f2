//! What a route takes and gives, beside its path: what the table says of each, for the OpenAPI document.

/// What a route takes and gives.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) parameters: &'static [&'static [Parameter]],
    pub(super) body: Option<Body>,
    pub(super) status: u16,
    /// One of these; without any, nothing comes back but the status.
    pub(super) answers: [Option<Media>; 2],
}

/// A body that is sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Body {
    /// One of these.
    pub(super) media: [Option<Media>; 2],
    pub(super) is_required: bool,
}

/// A body of some kind.
#[derive(Debug, Clone, Copy)]
pub(super) struct Media {
    pub(super) kind: &'static str,
    /// Its schema in `schemas.json`; none for bytes that are anybody's.
    pub(super) schema: Option<&'static str>,
}

/// A parameter that is not part of the path.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) is_header: bool,
    pub(super) about: &'static str,
}

/// What a parameter may be.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Flag,
    Number,
    Text,
    /// Any JSON, written out.
    Json,
    OneOf(&'static [&'static str]),
}

impl Media {
    pub(super) const fn json(schema: &'static str) -> Self {
        Media { kind: "application/json", schema: Some(schema) }
    }

    pub(super) const fn bytes(kind: &'static str) -> Self {
        Media { kind, schema: None }
    }
}

/// What gives JSON of this schema, with status 200.
pub(super) const fn gives(schema: &'static str) -> Shape {
    Shape { parameters: &[], body: None, status: 200, answers: [Some(Media::json(schema)), None] }
}

/// What gives bytes.
pub(super) const fn gives_bytes() -> Shape {
    Shape { parameters: &[], body: None, status: 200, answers: [Some(Media::bytes("*/*")), None] }
}

/// What gives server-sent events, as long as anybody listens.
pub(super) const fn gives_events() -> Shape {
    Shape { parameters: &[], body: None, status: 200, answers: [Some(Media::bytes("text/event-stream")), None] }
}

/// What is refused by name.
pub(super) const fn refuses() -> Shape {
    gives("Error").status(501)
}

impl Shape {
    /// The same with another status.
    pub(super) const fn status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    /// The same with parameters, in groups that several routes have.
    pub(super) const fn with(mut self, parameters: &'static [&'static [Parameter]]) -> Self {
        self.parameters = parameters;
        self
    }

    /// The same, which needs JSON of this schema.
    pub(super) const fn takes(mut self, schema: &'static str) -> Self {
        self.body = Some(Body { media: [Some(Media::json(schema)), None], is_required: true });
        self
    }

    /// The same, which takes JSON of this schema, or nothing.
    pub(super) const fn may_take(mut self, schema: &'static str) -> Self {
        self.body = Some(Body { media: [Some(Media::json(schema)), None], is_required: false });
        self
    }

    /// The same, which takes bytes of this kind, if need be in place of JSON.
    pub(super) const fn takes_bytes(mut self, kind: &'static str) -> Self {
        let before = match self.body {
            Some(body) => body.media[0],
            None => None,
        };
        self.body = Some(Body { media: [before, Some(Media::bytes(kind))], is_required: true });
        self
    }

    /// The same, which gives bytes of this kind instead where they are asked for.
    pub(super) const fn or_gives(mut self, kind: &'static str) -> Self {
        self.answers[1] = Some(Media::bytes(kind));
        self
    }
}

/// A parameter that is `true` or `false`.
pub(super) const fn flag(name: &'static str, about: &'static str) -> Parameter {
    Parameter { name, kind: Kind::Flag, is_header: false, about }
}

/// A parameter that is a whole number.
pub(super) const fn number(name: &'static str, about: &'static str) -> Parameter {
    Parameter { name, kind: Kind::Number, is_header: false, about }
}

/// A parameter that is text as it is.
pub(super) const fn text(name: &'static str, about: &'static str) -> Parameter {
    Parameter { name, kind: Kind::Text, is_header: false, about }
}

/// A parameter that is JSON.
pub(super) const fn json(name: &'static str, about: &'static str) -> Parameter {
    Parameter { name, kind: Kind::Json, is_header: false, about }
}

/// A parameter that is one of some words.
pub(super) const fn one_of(name: &'static str, words: &'static [&'static str], about: &'static str) -> Parameter {
    Parameter { name, kind: Kind::OneOf(words), is_header: false, about }
}

/// A header.
pub(super) const fn header(name: &'static str, about: &'static str) -> Parameter {
    Parameter { name, kind: Kind::Text, is_header: true, about }
}
