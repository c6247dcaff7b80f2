//! Queries, their figures, feeds.

use stemmadb::{Error, Number, Object, Query, Result, Selector, Sequence, Value};
use stemmadb_client::bindings::{Reader, ReadyFind};
use stemmadb_client::{AnyDatabase, AnyFind};

use crate::arguments::Arguments;
use crate::calls::Answer;
use crate::cursor::{Cursor, Rows, Source};
use crate::text::into_text;

/// The rows of a query: documents, with `fields` plain values, or ids.
pub(crate) fn rows(reader: &Reader, arguments: &mut Arguments) -> Result<Rows> {
    let find = reader.find(arguments.query()?)?;
    let form = arguments.text("rows")?;
    Ok(match (find, form.as_str()) {
        (ReadyFind::Rows(rows), "documents") => Rows::Read(rows.into_iter()),
        (find, "ids") => Rows::Ids(find.find()?.ids()?),
        (find, "values") => Rows::Values(find.find()?.values()?),
        (ReadyFind::Find(find), _) => Rows::Documents(find.run()?),
        (ReadyFind::Rows(_), _) => return Err(Error::internal("rows have an unknown form")),
    })
}

fn write_all(rows: &mut Rows, out: &mut Vec<u8>) -> Result<()> {
    let start = out.len();
    out.push(b'[');
    loop {
        let before = out.len();
        if before > start + 1 {
            out.push(b',');
        }
        if !rows.write_next(out)? {
            out.truncate(before);
            break;
        }
    }
    out.push(b']');
    Ok(())
}

/// All rows.
pub(crate) fn all(reader: &Reader, arguments: &mut Arguments) -> Result<Answer> {
    let mut json = Vec::with_capacity(4096);
    write_all(&mut rows(reader, arguments)?, &mut json)?;
    into_text(json).map(Answer::Text)
}

/// All rows, and the token after which the next page begins.
pub(crate) fn page(reader: &Reader, arguments: &mut Arguments) -> Result<Answer> {
    let mut rows = rows(reader, arguments)?;
    let mut json = b"{\"rows\":".to_vec();
    write_all(&mut rows, &mut json)?;
    if let Some(token) = rows.token()? {
        json.extend_from_slice(b",\"next\":");
        Value::from(token).write_json(&mut json);
    }
    json.push(b'}');
    into_text(json).map(Answer::Text)
}

fn number(number: Option<Number>) -> Value {
    number.map_or(Value::Null, Value::Number)
}

/// One figure of the documents that match; `null` if there is none.
pub(crate) fn figure(reader: &Reader, arguments: &mut Arguments) -> Result<Value> {
    let find = reader.find(arguments.query()?)?;
    let figure = arguments.text("figure")?;
    match figure.as_str() {
        "count" => return find.count().map(Value::from),
        "exists" => return find.exists().map(Value::from),
        _ => {}
    }
    let (find, path) = (find.find()?, arguments.text("path")?);
    Ok(match figure.as_str() {
        "distinct" => Value::Array(find.distinct(path)?),
        "min" => find.min(path)?.unwrap_or_default(),
        "max" => find.max(path)?.unwrap_or_default(),
        "sum" => Value::Number(find.sum(path)?),
        "average" => find.average(path)?.map_or(Value::Null, Value::from),
        "summary" => {
            let summary = find.summary(path)?;
            let mut object = Object::new();
            object.insert("count", summary.count);
            object.insert("sum", number(summary.sum));
            object.insert("min", number(summary.min));
            object.insert("max", number(summary.max));
            Value::Object(object)
        }
        _ => return Err(Error::internal(format!("there is no figure `{figure}`"))),
    })
}

/// Figures of groups, or of all documents that match: an object for each, with the values at the paths.
pub(crate) fn aggregate(reader: &Reader, arguments: &mut Arguments) -> Result<Value> {
    let query = arguments.query()?;
    let paths = arguments.texts("groupBy")?.unwrap_or_default();
    let mut aggregation = Object::new();
    aggregation.insert("selector", query.selector().to_value()?);
    if !paths.is_empty() {
        aggregation.insert("group_by", paths.iter().map(String::as_str).map(Value::from).collect::<Vec<_>>());
    }
    aggregation.insert("figures", Value::Object(arguments.object("figures")?));
    let rows = reader.aggregate(&Value::Object(aggregation))?;
    let row = |(group, figures): (Value, Object)| {
        let mut row = Object::new();
        match (paths.as_slice(), group) {
            ([path], value) => drop(row.insert(path, value)),
            (paths, Value::Array(values)) => {
                for (path, value) in paths.iter().zip(values) {
                    row.insert(path, value);
                }
            }
            _ => {}
        }
        for (name, figure) in figures {
            row.insert(name, figure);
        }
        Value::Object(row)
    };
    Ok(rows.into_iter().map(row).collect())
}

/// The plan: its text, and as a tree if the database is in this process.
pub(crate) fn explain(reader: &Reader, arguments: &mut Arguments) -> Result<Value> {
    let find = reader.find(arguments.query()?)?.find()?;
    let analyzes = arguments.flag("analyze")?;
    let mut object = Object::new();
    match find {
        AnyFind::Embedded(find) => {
            let plan = if analyzes { find.explain_analyze() } else { find.explain() }?;
            object.insert("text", plan.to_string());
            object.insert("tree", plan.to_value());
        }
        AnyFind::Remote(find) => drop(object.insert("text", find.explain()?)),
    }
    Ok(Value::Object(object))
}

/// Changes all documents that match, in one transaction.
pub(crate) fn update_where(database: &AnyDatabase, arguments: &mut Arguments) -> Result<Value> {
    let query = arguments.query()?;
    database.update_where(query, &arguments.patch()?).map(Value::from)
}

/// Deletes all documents that match, in one transaction.
pub(crate) fn delete_where(database: &AnyDatabase, arguments: &mut Arguments) -> Result<Value> {
    database.delete_where(arguments.query()?).map(Value::from)
}

/// Subscribes to changes.
pub(crate) fn changes(database: &AnyDatabase, arguments: &mut Arguments) -> Result<Answer> {
    let since = match arguments.take("since") {
        None => Sequence::ZERO,
        Some(Value::String(now)) if now == "now" => database.sequence()?,
        Some(Value::Number(number)) if number.as_u64().is_some() => Sequence::new(number.as_u64().unwrap_or_default()),
        Some(_) => return Err(Error::invalid("`since` is neither a sequence nor \"now\"")),
    };
    let (documents, ids) = (arguments.flag("documents")?, arguments.texts("ids")?);
    let (selector, timeout) = (arguments.selector()?, arguments.milliseconds("timeout")?);
    let mut feed = database.subscribe(since).documents(documents);
    if let Some(ids) = ids {
        feed = feed.ids(ids);
    }
    if let Some(selector) = &selector {
        feed = feed.selector(selector)?;
    }
    Ok(Answer::Cursor(Cursor::new(Source::Changes { database: database.clone(), feed, timeout })))
}

/// Starts a live query.
pub(crate) fn watch(database: &AnyDatabase, arguments: &mut Arguments) -> Result<Answer> {
    let query = Query::new(arguments.selector()?.unwrap_or_else(Selector::everything));
    let timeout = arguments.milliseconds("timeout")?;
    let watch = database.watch(query)?;
    Ok(Answer::Cursor(Cursor::new(Source::Watch { database: database.clone(), watch, timeout })))
}
