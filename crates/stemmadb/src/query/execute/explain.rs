//! How a query is answered, as a tree for people and programs.

use std::borrow::Cow;
use std::fmt;
use std::ops::Bound;
use std::time::Instant;

use super::cursor::{Checks, Cursor, Need};
use super::estimate::estimate;
use super::evaluate::Trace;
use crate::Result;
use crate::index::{PathNumber, Paths, Presence};
use crate::query::language::interval::KeyRange;
use crate::query::language::normal::Normal;
use crate::query::language::print;
use crate::query::plan::facts::Facts;
use crate::query::plan::request::{Prepared, Query};
use crate::query::plan::{Drive, Node, Order, Plan, ValueTest, Values};
use crate::query::source::Source;
use crate::value::collate::key::{self, Tag};
use crate::value::{Object, Value};

/// Larger plans are shown without estimates.
const ESTIMATED_MAX: usize = 1_000;
/// How many rows an analysis takes at once.
const BATCH: usize = 256;

/// How a query is answered: what the index is asked, what is checked on documents, and how rows come into order; each step with
/// about how many documents it gives. Of an analysed query also what each step found and took.
#[derive(Clone, Debug)]
pub struct Explanation {
    filter: Step,
    /// About how many rows there are without a limit.
    estimated: Option<u64>,
    residual: Option<Value>,
    order: String,
    sort: Value,
    limit: Option<u64>,
    skip: u64,
    ran: Option<Ran>,
}

/// One step of the filter.
#[derive(Clone, Debug)]
struct Step {
    /// What is done, in one word.
    operation: &'static str,
    path: Option<String>,
    /// What with.
    detail: Option<String>,
    is_exact: bool,
    /// What came of it; none if it was not evaluated.
    found: Option<Found>,
    /// About how many documents it gives.
    estimated: Option<u64>,
    /// Whether documents were read instead of finishing it.
    is_abandoned: bool,
    children: Vec<Step>,
}

#[derive(Clone, Copy, Debug)]
struct Found {
    certain_count: u64,
    maybe_count: u64,
    time_us: u64,
}

/// What running the query took.
#[derive(Clone, Copy, Debug)]
struct Ran {
    row_count: u64,
    documents_read: u64,
    /// Of documents read to decide whether they match.
    checks: Checks,
    values_walked: u64,
    time_us: u64,
}

pub(in crate::query) fn explain<S: Source>(source: S, query: &Query, analyze: bool) -> Result<Explanation> {
    let prepared = query.prepare()?;
    if !analyze {
        let facts = Facts::of(&source);
        let plan = prepared.plan(prepared.limit.is_some(), facts);
        let order = match &plan.order {
            Order::Insertion => "by number".into(),
            Order::Sorted { declared: Some(walk), .. } if walk.rest == Node::All => {
                format!("walked in the order of index `{}`", walk.name).into()
            }
            Order::Sorted { declared: Some(walk), .. } => {
                format!("walked in the order of index `{}` or collected, by what costs less", walk.name).into()
            }
            Order::Sorted { walk: Some(_), .. } => {
                "walked in the order of values or collected, by what costs less".into()
            }
            Order::Sorted { walk: None, .. } => "collected and sorted".into(),
        };
        let mut filter = Step::new(&plan.filter, source.paths(), &Trace::default());
        filter.estimate(&plan.filter, &source, source.live_len()?)?;
        let estimated = filter.estimated;
        return Ok(Explanation::new(&prepared, &plan, filter, estimated, order, None));
    }
    let started = Instant::now();
    let mut trace = Trace::default();
    let mut cursor = Cursor::open(source, &prepared, Some(&mut trace))?;
    let order = cursor.order_name();
    let row_count = run(&mut cursor, &prepared)?;
    query.limits().allow_rows(row_count)?;
    let filtered = &cursor.filtered;
    let ran = Ran {
        row_count,
        documents_read: filtered.documents_read(),
        checks: filtered.checks(),
        values_walked: filtered.values_walked(),
        time_us: microseconds(started.elapsed()),
    };
    // After the clock has stopped: of the same snapshot, they are what they were.
    let (source, plan, all) = (&filtered.source, &filtered.plan, filtered.source.live_len()?);
    let filter = match cursor.drive() {
        Some(drive) => Step::driven(drive, source, all, &trace)?,
        None => {
            let mut filter = Step::new(&plan.filter, source.paths(), &trace);
            filter.estimate(&plan.filter, source, all)?;
            filter
        }
    };
    let estimated = estimate(&plan.filter, source, all)?;
    Ok(Explanation::new(&prepared, plan, filter, Some(estimated), order, Some(ran)))
}

/// Runs a query to its last row and counts the rows.
fn run<S: Source>(cursor: &mut Cursor<S>, prepared: &Prepared) -> Result<u64> {
    let wanted = prepared.limit.unwrap_or(u64::MAX).saturating_add(prepared.skip);
    let mut found = 0;
    while found < wanted {
        let left = usize::try_from(wanted - found).unwrap_or(usize::MAX);
        let hits = cursor.next_hits(BATCH.min(left))?;
        if hits.is_empty() {
            break;
        }
        found += cursor.filtered.verified(hits)?.iter().filter(|hit| hit.need == Need::Nothing).count() as u64;
    }
    Ok(found.min(wanted).saturating_sub(prepared.skip))
}

fn microseconds(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Explanation {
    fn new(
        prepared: &Prepared,
        plan: &Plan,
        filter: Step,
        estimated: Option<u64>,
        order: Cow<'static, str>,
        ran: Option<Ran>,
    ) -> Self {
        let residual = (plan.residual != Normal::Everything).then(|| print::normal(&plan.residual));
        Explanation {
            filter,
            estimated,
            residual,
            order: order.into_owned(),
            sort: prepared.sort.to_value(),
            limit: prepared.limit,
            skip: prepared.skip,
            ran,
        }
    }

    /// What was checked on documents, if the query ran and that was asked for or took place.
    fn checks(&self) -> Option<Checks> {
        let checks = self.ran.as_ref()?.checks;
        (checks.count > 0 || self.residual.is_some()).then_some(checks)
    }

    /// The explanation as JSON: `filter` is a tree of steps, each with its `operation`, `path`, `detail`, and what it gives
    /// (`estimated_rows`; analysed also `rows`, those `undecided`, `time_us`), and the steps it is made `of`. Steps ask the index:
    /// only `check` reads documents to decide, and `documents_read` counts these and what a sort reads.
    pub fn to_value(&self) -> Value {
        let mut object = Object::new();
        object.insert("filter", self.filter.to_value());
        if let Some(residual) = &self.residual {
            object.insert("checked_on_documents", residual.clone());
        }
        if let Some(checks) = self.checks() {
            let mut check = Object::new();
            check.insert("documents_read", checks.count);
            check.insert("rows", checks.matching_count);
            check.insert("time_us", microseconds(checks.time));
            object.insert("check", Value::Object(check));
        }
        object.insert("sort", self.sort.clone());
        object.insert("order", self.order.as_str());
        if let Some(limit) = self.limit {
            object.insert("limit", limit);
        }
        if self.skip > 0 {
            object.insert("skip", self.skip);
        }
        if let Some(estimated) = self.estimated {
            object.insert("estimated_rows", estimated);
        }
        if let Some(ran) = &self.ran {
            object.insert("rows", ran.row_count);
            object.insert("documents_read", ran.documents_read);
            if ran.values_walked > 0 {
                object.insert("values_walked", ran.values_walked);
            }
            object.insert("time_us", ran.time_us);
        }
        Value::Object(object)
    }
}

impl fmt::Display for Explanation {
    /// A tree of lines.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rows {}", self.order)?;
        if let Value::Array(keys) = &self.sort
            && !keys.is_empty()
        {
            write!(f, ", sort {}", self.sort)?;
        }
        if let Some(limit) = self.limit {
            write!(f, ", limit {limit}")?;
        }
        if self.skip > 0 {
            write!(f, ", skip {}", self.skip)?;
        }
        if let Some(ran) = &self.ran {
            let (rows, documents) = (counted(ran.row_count, "row"), counted(ran.documents_read, "document"));
            write!(f, ": {rows}{}, {documents} read", expectation(self.estimated))?;
            if ran.values_walked > 0 {
                write!(f, ", {} walked", counted(ran.values_walked, "value"))?;
            }
            write!(f, ", {} µs", ran.time_us)?;
        }
        match (&self.residual, self.checks()) {
            (Some(residual), _) => write!(f, "\n  checked on documents: {residual}")?,
            (None, Some(_)) => write!(f, "\n  checked on documents: the whole selector")?,
            (None, None) => {}
        }
        match self.checks() {
            Some(Checks { count: 0, .. }) => write!(f, ": not needed")?,
            Some(Checks { count, matching_count, time }) => {
                write!(f, ": {matching_count} of {} match, {} µs", counted(count, "document"), microseconds(time))?;
            }
            None => {}
        }
        self.filter.write(f, 1)
    }
}

impl Step {
    fn new(node: &Node, paths: &Paths, trace: &Trace) -> Self {
        let (operation, path, detail) = describe(node);
        let children = node.children();
        let untraced = Trace::default();
        let traces = (0..children.len()).map(|at| trace.children.get(at).unwrap_or(&untraced));
        Step {
            operation,
            path: path.map(|path| paths.text(path).unwrap_or_else(|| format!("path {}", path.0))),
            detail,
            is_exact: node.is_exact(),
            found: trace.measured.map(|measured| Found {
                certain_count: measured.certain_count,
                maybe_count: measured.maybe_count,
                time_us: microseconds(measured.time),
            }),
            estimated: None,
            is_abandoned: trace.is_abandoned,
            children: children.iter().zip(traces).map(|(child, trace)| Step::new(child, paths, trace)).collect(),
        }
    }

    /// Estimates it and what is below it. A step costs a few look-ups, and is looked at once for each step above it.
    fn estimate(&mut self, node: &Node, source: &impl Source, all: u64) -> Result<()> {
        if self.detail_count() > ESTIMATED_MAX {
            return Ok(());
        }
        self.estimated = Some(estimate(node, source, all)?);
        let mut children = node.children().into_iter();
        self.children.iter_mut().try_for_each(|child| match children.next() {
            Some(node) => child.estimate(node, source, all),
            None => Ok(()),
        })
    }

    /// How many steps there are below it, itself included.
    fn detail_count(&self) -> usize {
        1 + self.children.iter().map(Step::detail_count).sum::<usize>()
    }

    /// A condition whose values are walked, of which the others are asked beside.
    fn driven(drive: &Drive, source: &impl Source, all: u64, trace: &Trace) -> Result<Self> {
        let paths = source.paths();
        let path = drive.path;
        let values = match &drive.values {
            Values::Range(range) => Node::Range { path, range: range.clone() },
            Values::Keys(keys) => Node::EqualAny { path, keys: keys.clone() },
            Values::Matching(range, test) => Node::Matching { path, range: range.clone(), test: test.clone() },
        };
        let mut step = Step::new(&values, paths, &Trace::default());
        step.estimate(&values, source, all)?;
        step.operation = "walk";
        let asked = [(&drive.others, &Trace::default(), Node::Empty), (&drive.rest, trace, Node::All)];
        for (node, trace, _) in asked.into_iter().filter(|(node, _, nothing)| *node != nothing) {
            let mut child = Step::new(node, paths, trace);
            child.estimate(node, source, all)?;
            step.children.push(child);
        }
        Ok(step)
    }

    fn to_value(&self) -> Value {
        let mut object = Object::new();
        object.insert("operation", self.operation);
        if let Some(path) = &self.path {
            object.insert("path", path.as_str());
        }
        if let Some(detail) = &self.detail {
            object.insert("detail", detail.as_str());
        }
        object.insert("exact", self.is_exact);
        if let Some(found) = &self.found {
            object.insert("rows", found.certain_count);
            object.insert("undecided", found.maybe_count);
            object.insert("time_us", found.time_us);
        }
        if let Some(estimated) = self.estimated {
            object.insert("estimated_rows", estimated);
        }
        if self.is_abandoned {
            object.insert("left_to_documents", true);
        }
        if !self.children.is_empty() {
            object.insert("of", Value::Array(self.children.iter().map(Step::to_value).collect()));
        }
        Value::Object(object)
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, depth: usize) -> fmt::Result {
        write!(f, "\n{:indent$}{}", "", self.operation, indent = depth * 2)?;
        if let Some(path) = &self.path {
            write!(f, " {path}")?;
        }
        if let Some(detail) = &self.detail {
            write!(f, " {detail}")?;
        }
        if let Some(found) = &self.found {
            write!(f, ": {}", counted(found.certain_count, "row"))?;
            if found.maybe_count > 0 {
                write!(f, ", {} undecided", found.maybe_count)?;
            }
            write!(f, "{}, {} µs", expectation(self.estimated), found.time_us)?;
        } else if let Some(estimated) = self.estimated {
            write!(f, ": about {}", counted(estimated, "row"))?;
        }
        if self.is_abandoned {
            write!(f, ": left to the documents")?;
        }
        self.children.iter().try_for_each(|child| child.write(f, depth + 1))
    }
}

/// A node's operation, path and detail.
fn describe(node: &Node) -> (&'static str, Option<PathNumber>, Option<String>) {
    match node {
        Node::Empty => ("nothing", None, None),
        Node::All => ("all documents", None, None),
        Node::Equal { path: PathNumber::ROOT, key } => ("collection", None, Some(show_key(key))),
        Node::Equal { path, key } => ("equal", Some(*path), Some(show_key(key))),
        Node::EqualAny { path, keys } => ("equal to one of", Some(*path), Some(show_keys(keys))),
        Node::Range { path, range } => ("range", Some(*path), Some(show_range(range))),
        Node::Presence { path, kinds } => ("presence", Some(*path), Some(show_kinds(kinds))),
        Node::Matching { path, range, test } => {
            let test = match test {
                ValueTest::Regex(pattern) => format!("/{}/", pattern.text()),
                ValueTest::Modulo { divisor, remainder } => format!("% {divisor} = {remainder}"),
            };
            ("distinct values", Some(*path), Some(format!("{} that match {test}", show_range(range))))
        }
        Node::Ids(ids) => ("ids", None, Some(shorten(&ids.join(", ")))),
        Node::IdRange { lower, upper } => ("range of ids", None, Some(show_bounds(lower, upper))),
        Node::Union(_) => ("union", None, None),
        Node::Intersection(_) => ("intersection", None, None),
        Node::Difference(..) => ("difference", None, None),
        Node::Check(_) => ("check on documents", None, None),
    }
}

fn show_kinds(kinds: &[Presence]) -> String {
    if kinds.len() == 6 {
        return "of any kind".to_owned();
    }
    let names: Vec<String> = kinds.iter().map(|kind| format!("{kind:?}").to_lowercase()).collect();
    names.join(", ")
}

fn show_keys(keys: &[Vec<u8>]) -> String {
    let shown: Vec<String> = keys.iter().take(8).map(|key| show_key(key)).collect();
    let rest = if keys.len() > 8 { format!(" and {} more", keys.len() - 8) } else { String::new() };
    format!("{}{rest}", shown.join(", "))
}

fn show_key(value_key: &[u8]) -> String {
    match whole_value(value_key) {
        Some(value) => shorten(&value.to_json()),
        None => match key::decode_string(value_key) {
            Ok((text, _)) => format!("\"{}…\" by hash", shorten(&String::from_utf8_lossy(&text.bytes))),
            Err(_) => "a value".to_owned(),
        },
    }
}

/// A range of keys as the comparisons it came from.
fn show_range(range: &KeyRange) -> String {
    let is_prefix =
        range.upper == crate::query::language::interval::successor(&range.lower) && whole_value(&range.lower).is_none();
    if let ([tag, bytes @ ..], true) = (range.lower.as_slice(), is_prefix) {
        if *tag == Tag::String as u8 && !bytes.is_empty() {
            let text = String::from_utf8_lossy(bytes).replace("\0\u{1}", "…");
            return format!("begins with \"{}\"", shorten(&text));
        }
        if let Some(kind) = key::kind_of(&range.lower) {
            return format!("any {kind}");
        }
    }
    let lower = show_bound(&range.lower, ">=", ">");
    let upper = show_bound(&range.upper, "<", "<=");
    [lower, upper].into_iter().flatten().collect::<Vec<_>>().join(" and ")
}

/// A bound as a comparison with the value it stands before or after; none if it stands between kinds.
fn show_bound(bound: &[u8], before: &str, after: &str) -> Option<String> {
    if let Some(value) = whole_value(bound) {
        return Some(format!("{before} {}", shorten(&value.to_json())));
    }
    if bound == KeyRange::of_scalars().lower {
        return None;
    }
    if let [tag, text @ .., 0, 2] = bound
        && *tag == Tag::String as u8
    {
        // After all strings that were cut here.
        return Some(format!("{after} \"{}…\"", shorten(&String::from_utf8_lossy(text))));
    }
    let mut previous = bound.to_vec();
    let last = previous.last_mut()?;
    *last = last.checked_sub(1)?;
    whole_value(&previous).map(|value| format!("{after} {}", shorten(&value.to_json())))
}

fn whole_value(value_key: &[u8]) -> Option<Value> {
    let (value, length) = key::decode(value_key).ok()?;
    (length == value_key.len()).then_some(value)
}

fn show_bounds(lower: &Bound<String>, upper: &Bound<String>) -> String {
    let lower = match lower {
        Bound::Included(id) => Some(format!(">= \"{}\"", shorten(id))),
        Bound::Excluded(id) => Some(format!("> \"{}\"", shorten(id))),
        Bound::Unbounded => None,
    };
    let upper = match upper {
        Bound::Included(id) => Some(format!("<= \"{}\"", shorten(id))),
        Bound::Excluded(id) => Some(format!("< \"{}\"", shorten(id))),
        Bound::Unbounded => None,
    };
    [lower, upper].into_iter().flatten().collect::<Vec<_>>().join(" and ")
}

/// What was expected, beside what was found.
fn expectation(estimated: Option<u64>) -> String {
    estimated.map_or_else(String::new, |estimated| format!(" (about {estimated} expected)"))
}

fn counted(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// The text, or its beginning if it is long.
fn shorten(text: &str) -> String {
    const SHOWN_MAX: usize = 80;
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
