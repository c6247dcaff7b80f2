//! A request and an answer as handlers see them.

mod answer;
mod arriving;
mod body;
mod call;
mod crowd;
mod multipart;
mod path;
mod query;
mod room;
mod stream;
mod watched;
mod weight;

pub(crate) use answer::{Answer, Body, Served};
pub(crate) use arriving::{Arriving, arriving_on_channel};
pub(crate) use body::{Patience, next_frame, read_all, read_json, read_json_within};
pub(crate) use call::{Call, State, UPLOADS_MAX, blocking, may_step_aside, reading};
pub(crate) use crowd::Crowd;
pub(crate) use multipart::{Parts, boundary};
pub(crate) use path::{Parameters, segments};
pub(crate) use query::Query;
pub(crate) use room::{Room, Share};
pub(crate) use stream::{Pieces, streamed, streamed_bytes, write_string};
pub(crate) use watched::{Watch, Watched};
pub(crate) use weight::{Extent, Purpose, check_weight, string_length};
