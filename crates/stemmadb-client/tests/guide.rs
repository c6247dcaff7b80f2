//! The samples of the guide are parts of example programs, which run against a server.

mod support;

#[path = "../examples/remote.rs"]
#[allow(dead_code, reason = "the example's `main` is not called")]
mod remote;

#[path = "../examples/functions.rs"]
#[allow(dead_code, reason = "the example's `main` is not called")]
mod functions;

const GUIDE: &str = include_str!("../../../docs/guide/remote.md");
const EXAMPLE: &str = include_str!("../examples/remote.rs");

#[test]
fn example_of_the_guide_runs() {
    let server = support::TestServer::start(support::Transport::Tcp);
    remote::run(&server.url("root:geheim@")).unwrap();
}

/// Whether all Rust samples of a page are parts of a program.
fn check_samples(page: &str, example: &str, count_min: usize) {
    let unindented = |text: &str| -> String { text.lines().map(|line| format!("{}\n", line.trim())).collect() };
    let example = unindented(example);
    let samples: Vec<_> = page.split("```rust\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(samples.len() >= count_min);
    for sample in samples {
        assert!(example.contains(&unindented(sample)), "{sample}");
    }
}

#[test]
fn samples_of_the_guide_are_parts_of_the_example() {
    check_samples(GUIDE, EXAMPLE, 4);
    check_samples(include_str!("../../../docs/guide/serve.md"), include_str!("../examples/functions.rs"), 2);
}

/// A function has the rights of its caller, and its errors have their kinds, over the wire protocol and HTTP.
#[test]
fn functions_are_called_with_the_rights_of_the_caller() {
    use stemmadb::{Error, ErrorKind, Result, field};
    use stemmadb_client::Credentials;
    use stemmadb_server::Server;

    fn build(config: stemmadb_server::Config) -> stemmadb_server::ServerBuilder {
        functions::builder(config)
            .function("visible", |context, owner: Option<String>| {
                let owners = match &owner {
                    Some(owner) => context.find(field("owner").eq(owner.as_str())),
                    None => context.find(stemmadb::Selector::everything()),
                };
                Ok((context.user().map(str::to_owned), context.is_administrator(), owners.count()?))
            })
            .function("take", |context, id: String| {
                context.optimistic(|tx| tx.update(&id, &stemmadb::Patch::new().set("owner", "ada")).map(drop))
            })
            .function("fail", |_, (): ()| Err::<(), _>(Error::conflict("it is closed")))
            .function("panic", |_, (): ()| -> Result<()> { panic!("a bug") })
    }
    let server = support::TestServer::start_built(support::Transport::Tcp, |_| (), build);
    let admin = server.client();
    functions::sell(&admin).unwrap();
    let db = admin.database("shop");
    admin.create_database("_users").unwrap();
    let user = serde_json::json!({"name": "ada", "type": "user", "roles": [], "password": "secret"});
    admin.database("_users").insert("org.couchdb.user:ada", &user).unwrap();
    for (id, owner) in [("a", "ada"), ("b", "bob")] {
        db.insert(id, &serde_json::json!({ "owner": owner })).unwrap();
    }
    let rule = r#"{"members": {"names": ["ada"], "roles": []},
        "access_rule": {"selector": {"owner": {"$user": "name"}}}}"#;
    server.set_security("shop", &rule.parse().unwrap());
    let credentials = Credentials::Password { user: "ada".into(), password: "secret".into() };
    let ada = stemmadb_client::Client::connect_with(&server.url(""), server.options().credentials(credentials));
    let ada = ada.unwrap().database("shop");
    type Visible = (Option<String>, bool, u64);
    assert_eq!(ada.call::<_, Visible>("visible", &()).unwrap(), (Some("ada".to_owned()), false, 1));
    assert_eq!(db.call::<_, Visible>("visible", &()).unwrap(), (Some("root".to_owned()), true, 3));
    assert_eq!(ada.call::<_, Visible>("visible", "bob").unwrap().2, 0);
    assert_eq!(ada.call::<_, ()>("take", "b").unwrap_err().kind(), ErrorKind::NotFound);
    ada.call::<_, ()>("take", "a").unwrap();
    for (name, kind) in [("fail", ErrorKind::Conflict), ("panic", ErrorKind::Internal), ("none", ErrorKind::NotFound)] {
        let error = ada.call::<_, ()>(name, &()).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    }
    let misfit = db.call::<_, ()>("sell", &serde_json::json!({"book": 1})).unwrap_err();
    assert_eq!(misfit.kind(), ErrorKind::Invalid);
    let answer = server.http("POST", "/shop/_function/sell", r#"{"book": "solaris", "count": 1}"#);
    assert!(answer.contains(r#"{"total":12,"left":0}"#), "{answer}");
    let sold_out = db.call::<_, ()>("sell", &serde_json::json!({"book": "solaris", "count": 1})).unwrap_err();
    assert_eq!((sold_out.kind(), sold_out.message()), (ErrorKind::Conflict, "only 0 are left"));
    // A name that two functions have is refused.
    let twice = Server::builder(server.config.clone()).function("f", |_, n: u8| Ok(n)).function("f", |_, n: u8| Ok(n));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert!(runtime.block_on(twice.start()).is_err());
}
