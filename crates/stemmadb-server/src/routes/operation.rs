//! The description of a route's parameters, request body and responses, for the OpenAPI document.

/// The parameters, request body and responses of a route.
#[derive(Debug, Clone, Copy)]
pub(super) struct Operation {
    pub(super) parameters: &'static [&'static [Parameter]],
    /// Whether other parameters are an error. CouchDB ignores them, so its routes do as well.
    pub(super) refuses_unknown: bool,
    /// Whether responses may be feeds, whose chunks are sent at once and uncompressed.
    pub(super) is_streamed: bool,
    pub(super) body: Option<RequestBody>,
    pub(super) status: u16,
    /// The alternative response bodies; none if the response has only a status.
    pub(super) responses: [Option<MediaType>; 2],
}

/// The request body of a route.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestBody {
    /// The alternative content types.
    pub(super) media: [Option<MediaType>; 2],
    pub(super) is_required: bool,
}

/// A content type and its schema.
#[derive(Debug, Clone, Copy)]
pub(super) struct MediaType {
    pub(super) kind: &'static str,
    /// The name of its schema in `schemas.json`; `None` for arbitrary bytes.
    pub(super) schema: Option<&'static str>,
}

/// A query parameter or a request header.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) kind: ParameterType,
    pub(super) is_header: bool,
    pub(super) description: &'static str,
}

/// The type of a parameter's value.
#[derive(Debug, Clone, Copy)]
pub(super) enum ParameterType {
    Flag,
    Number,
    Text,
    /// Any JSON value.
    Json,
    OneOf(&'static [&'static str]),
}

impl MediaType {
    pub(super) const fn json(schema: &'static str) -> Self {
        MediaType { kind: "application/json", schema: Some(schema) }
    }

    pub(super) const fn bytes(kind: &'static str) -> Self {
        MediaType { kind, schema: None }
    }
}

const fn returns_media(media: MediaType) -> Operation {
    Operation {
        parameters: &[],
        refuses_unknown: false,
        is_streamed: false,
        body: None,
        status: 200,
        responses: [Some(media), None],
    }
}

/// An operation that returns JSON of this schema with status 200.
pub(super) const fn returns(schema: &'static str) -> Operation {
    returns_media(MediaType::json(schema))
}

/// An operation that returns arbitrary bytes with status 200.
pub(super) const fn returns_bytes() -> Operation {
    returns_media(MediaType::bytes("*/*"))
}

/// An operation that returns a JSON object per line with status 200.
pub(super) const fn returns_json_lines() -> Operation {
    returns_media(MediaType::bytes("application/x-ndjson"))
}

/// An operation that returns server-sent events until the client disconnects.
pub(super) const fn returns_events() -> Operation {
    returns_media(MediaType::bytes("text/event-stream")).streamed()
}

/// A CouchDB operation that is rejected with status 501.
pub(super) const fn not_supported() -> Operation {
    returns("Error").status(501)
}

impl Operation {
    /// Sets the status of a successful response.
    pub(super) const fn status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    /// Sets the parameters, given as groups that several routes share.
    pub(super) const fn parameters(mut self, parameters: &'static [&'static [Parameter]]) -> Self {
        self.parameters = parameters;
        self
    }

    /// Makes parameters that are not described an error.
    pub(super) const fn refusing_unknown(mut self) -> Self {
        self.refuses_unknown = true;
        self
    }

    /// Declares that responses may be feeds.
    pub(super) const fn streamed(mut self) -> Self {
        self.is_streamed = true;
        self
    }

    /// Requires a JSON body of this schema.
    pub(super) const fn body(mut self, schema: &'static str) -> Self {
        self.body = Some(RequestBody { media: [Some(MediaType::json(schema)), None], is_required: true });
        self
    }

    /// Accepts a JSON body of this schema, or none.
    pub(super) const fn optional_body(mut self, schema: &'static str) -> Self {
        self.body = Some(RequestBody { media: [Some(MediaType::json(schema)), None], is_required: false });
        self
    }

    /// Requires a body of this content type; an alternative to JSON if a JSON body was set before.
    pub(super) const fn bytes_body(mut self, kind: &'static str) -> Self {
        let json = match self.body {
            Some(body) => body.media[0],
            None => None,
        };
        self.body = Some(RequestBody { media: [json, Some(MediaType::bytes(kind))], is_required: true });
        self
    }

    /// Adds an alternative response content type that clients can request.
    pub(super) const fn or_returns(mut self, kind: &'static str) -> Self {
        self.responses[1] = Some(MediaType::bytes(kind));
        self
    }
}

/// A Boolean query parameter.
pub(super) const fn flag(name: &'static str, description: &'static str) -> Parameter {
    Parameter { name, kind: ParameterType::Flag, is_header: false, description }
}

/// A query parameter that is a non-negative integer.
pub(super) const fn number(name: &'static str, description: &'static str) -> Parameter {
    Parameter { name, kind: ParameterType::Number, is_header: false, description }
}

/// A query parameter that is plain text.
pub(super) const fn text(name: &'static str, description: &'static str) -> Parameter {
    Parameter { name, kind: ParameterType::Text, is_header: false, description }
}

/// A query parameter that is encoded as JSON.
pub(super) const fn json(name: &'static str, description: &'static str) -> Parameter {
    Parameter { name, kind: ParameterType::Json, is_header: false, description }
}

/// A query parameter with a fixed set of values.
pub(super) const fn one_of(name: &'static str, words: &'static [&'static str], description: &'static str) -> Parameter {
    Parameter { name, kind: ParameterType::OneOf(words), is_header: false, description }
}

/// A request header.
pub(super) const fn header(name: &'static str, description: &'static str) -> Parameter {
    Parameter { name, kind: ParameterType::Text, is_header: true, description }
}
