//! How the server is set: what counts before what, and what is said of mistakes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use stemmadb::Durability;
use stemmadb_server::settings::{FILE, Gathered, Kind, Sources, Wrong, guide, settings};
use stemmadb_server::{Config, JwtAlgorithm};

/// A configuration, but for where it was said.
fn shown(gathered: Gathered) -> String {
    format!("{:?}", Config { given: Default::default(), ..gathered.config })
}

/// A directory of databases with this file of settings, and what else is said.
struct Place(tempfile::TempDir);

impl Place {
    fn new(file: &str) -> Self {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join(FILE), file).unwrap();
        Place(place)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn gather(&self, flags: &[(&str, &str)], environment: &[(&str, &str)]) -> Result<Gathered, Wrong> {
        let owned = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect::<Vec<_>>()
        };
        let flags = owned(flags).into_iter().map(|(name, text)| (name, vec![text])).collect();
        Sources { directory: self.0.path().to_owned(), file: None, flags, environment: owned(environment) }.gather()
    }

    fn refusal(&self, flags: &[(&str, &str)], environment: &[(&str, &str)]) -> String {
        let wrong = self.gather(flags, environment).unwrap_err();
        let text = wrong.message.replace(&self.0.path().display().to_string(), "DIR");
        wrong.hint.map_or(text.clone(), |hint| format!("{text} | {hint}"))
    }
}

fn refusal_of_file(file: &str) -> String {
    Place::new(file).refusal(&[], &[])
}

#[test]
fn a_flag_counts_before_a_variable_and_that_before_the_file() {
    let place = Place::new("durability = \"none\"\ncache_bytes = \"1MiB\"\nsession_timeout = \"1min\"\n");
    let gathered = place
        .gather(
            &[("durability", "interval:100ms")],
            &[("STEMMA_DURABILITY", "sync"), ("STEMMA_CACHE_BYTES", "2MiB"), ("PATH", "/bin")],
        )
        .unwrap();
    let config = &gathered.config;
    assert_eq!(config.durability, Durability::Interval(Duration::from_millis(100)));
    assert_eq!((config.cache_bytes, config.session_timeout), (2 << 20, Duration::from_secs(60)));
    assert_eq!(config.limits.body_bytes, stemmadb_server::Limits::default().body_bytes);
    let told: Vec<_> =
        gathered.told().lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let told = told.join("\n");
    for line in [
        "durability = \"interval:100ms\" # from --durability",
        "cache_bytes = \"2MiB\" # from STEMMA_CACHE_BYTES",
        "require_valid_user = false # default",
    ] {
        assert!(told.contains(line), "{line} is not in\n{told}");
    }
    assert!(told.contains("stemma.toml, line 3"), "{told}");
    assert!(gathered.remarks.is_empty(), "{:?}", gathered.remarks);
}

#[test]
fn every_setting_can_be_said_in_each_way() {
    let place = Place::new("");
    std::fs::write(place.path("key"), "a secret of at least thirty-two bytes\n").unwrap();
    let key = place.path("key").display().to_string();
    let example = |name: &str, kind: Kind| match (name, kind) {
        ("admin.password_file", _) => key.clone(),
        (_, Kind::Address) => "127.0.0.1:1234".to_owned(),
        (_, Kind::Bytes) => "3MiB".to_owned(),
        (_, Kind::Count) => "7".to_owned(),
        (_, Kind::Durability) => "interval:5s".to_owned(),
        (_, Kind::Duration) => "3min".to_owned(),
        ("cors.enabled", _) => "false".to_owned(),
        (_, Kind::Flag) => "true".to_owned(),
        (_, Kind::Level) => "debug".to_owned(),
        (_, Kind::Format) => "json".to_owned(),
        (_, Kind::Keys) => format!("HS256:k={key}"),
        (_, Kind::List) => "https://a.example,https://b.example".to_owned(),
        (_, Kind::Path) => "some.pem".to_owned(),
        (_, Kind::Secret | Kind::Text) => "words".to_owned(),
    };
    for setting in settings() {
        // What belongs together is given together.
        let company: &[(&str, &str)] = match setting.name {
            "admin.name" => &[("STEMMA_ADMIN_PASSWORD", "x")],
            "cors.credentials" => &[("STEMMA_CORS_ORIGINS", "https://a.example")],
            "tls.certificate" => &[("STEMMA_TLS_KEY", "k.pem")],
            "tls.key" => &[("STEMMA_TLS_CERTIFICATE", "c.pem")],
            _ => &[],
        };
        let text = example(setting.name, setting.kind);
        let default = place.gather(&[], company).or_else(|_| place.gather(&[], &[])).unwrap();
        let default = shown(default);
        let mut environment = company.to_vec();
        let variable = setting.variable();
        environment.push((&variable, &text));
        let by_variable = shown(place.gather(&[], &environment).unwrap());
        assert_ne!(by_variable, default, "{} changes nothing", setting.name);
        if setting.flag().is_some() {
            let by_flag = shown(place.gather(&[(setting.name, &text)], company).unwrap());
            assert_eq!(by_flag, by_variable, "{}", setting.name);
        }
        let (section, name) = setting.name.split_once('.').unwrap_or(("", setting.name));
        let heading = if section.is_empty() { String::new() } else { format!("[{section}]\n") };
        let value = match setting.kind {
            Kind::Count | Kind::Flag => text.clone(),
            kind if kind.is_list() => serde_json::json!(text.split(',').collect::<Vec<_>>()).to_string(),
            _ => serde_json::json!(text).to_string(),
        };
        std::fs::write(place.path(FILE), format!("{heading}{name} = {value}\n")).unwrap();
        let by_file = shown(place.gather(&[], company).unwrap());
        assert_eq!(by_file, by_variable, "{}", setting.name);
        std::fs::write(place.path(FILE), "").unwrap();
    }
}

#[test]
fn what_is_printed_is_a_file_that_says_the_same() {
    let place = Place::new("hosts = [\"db.example\"]\n[limits]\nbody_bytes = \"1MiB\"\nconnection_count = 10\n");
    let gathered = place.gather(&[("cors.origins", "https://a.example,https://b.example")], &[]).unwrap();
    let again = Place::new(&gathered.told());
    assert_eq!(
        shown(again.gather(&[], &[]).unwrap()),
        shown(gathered).replace(&place.0.path().display().to_string(), &again.0.path().display().to_string())
    );
}

#[test]
fn a_password_is_taken_from_a_file_or_a_variable_and_never_printed() {
    let place = Place::new("[admin]\nname = \"ada\"\npassword = \"in the file\"\n");
    let password = |gathered: &Gathered| gathered.config.administrator.as_ref().unwrap().password.clone();
    let gathered = place.gather(&[], &[]).unwrap();
    assert_eq!(
        (password(&gathered).as_str(), gathered.config.administrator.as_ref().unwrap().name.as_str()),
        ("in the file", "ada")
    );
    assert!(!gathered.told().contains("in the file") && gathered.told().contains("# password is set, and not shown"));
    assert!(!format!("{gathered:?}").contains("password: \"in the file\""), "{:?}", gathered.config);
    std::fs::write(place.path("password"), "of its own\r\n").unwrap();
    let file = place.path("password").display().to_string();
    assert_eq!(password(&place.gather(&[("admin.password_file", &file)], &[]).unwrap()), "of its own");
    assert_eq!(
        password(&place.gather(&[], &[("STEMMA_ADMIN_PASSWORD", "of the environment")]).unwrap()),
        "of the environment"
    );
    let both = place.gather(&[("admin.password_file", &file)], &[("STEMMA_ADMIN_PASSWORD", "x")]).unwrap();
    assert_eq!(password(&both), "of its own", "a flag counts before a variable");
    let told = place.refusal(&[], &[("STEMMA_ADMIN_PASSWORD", "x"), ("STEMMA_ADMIN_PASSWORD_FILE", &file)]);
    assert!(told.starts_with("there are two passwords"), "{told}");
    for (content, why) in [("", "not one line"), ("a\nb\n", "not one line")] {
        std::fs::write(place.path("password"), content).unwrap();
        let told = place.refusal(&[("admin.password_file", &file)], &[]);
        assert!(told.contains(why), "{told}");
    }
    // No setting that is a secret has a flag.
    assert!(settings().iter().all(|setting| setting.kind != Kind::Secret || setting.flag().is_none()));
}

#[cfg(unix)]
#[test]
fn a_password_that_others_can_read_is_remarked_on() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new("[admin]\npassword = \"x\"\n");
    for (mode, is_remarked) in [(0o644, true), (0o600, false)] {
        std::fs::set_permissions(place.path(FILE), PermissionsExt::from_mode(mode)).unwrap();
        let remarks = place.gather(&[], &[]).unwrap().remarks;
        assert_eq!(remarks.iter().any(|remark| remark.contains("chmod 600")), is_remarked, "{mode:o}: {remarks:?}");
    }
}

#[test]
fn a_key_that_is_none_is_told_with_the_one_that_was_meant() {
    assert_eq!(
        refusal_of_file("\n[limits]\nbody_byte = 1\n"),
        "DIR/stemma.toml, line 3: there is no setting limits.body_byte | did you mean limits.body_bytes?"
    );
    assert_eq!(
        refusal_of_file("body_bytes = 1\n"),
        "DIR/stemma.toml, line 1: there is no setting body_bytes | did you mean limits.body_bytes?"
    );
    assert_eq!(
        refusal_of_file("weather = \"fine\"\n"),
        "DIR/stemma.toml, line 1: there is no setting weather | `stemma serve --help` lists them"
    );
    let remarks =
        Place::new("").gather(&[], &[("STEMMA_ADMIN_PASWORD", "x"), ("STEMMA_PORT", "tcp://1")]).unwrap().remarks;
    assert_eq!(remarks[0], "STEMMA_ADMIN_PASWORD is no setting; did you mean STEMMA_ADMIN_PASSWORD?");
    assert!(remarks[1].starts_with("STEMMA_PORT is no setting"), "{remarks:?}");
}

#[test]
fn a_value_that_is_none_is_told_with_what_is_expected_and_where_it_stands() {
    assert_eq!(
        Place::new("").refusal(&[], &[("STEMMA_LIMITS_BODY_BYTES", "lots")]),
        "limits.body_bytes \"lots\" (from STEMMA_LIMITS_BODY_BYTES): expected a size, such as 64MiB (B, KiB, MiB, GiB)"
    );
    assert_eq!(
        refusal_of_file("# settings\nlisten = 5984\n"),
        "listen \"5984\" (from DIR/stemma.toml, line 2): expected an address and a port, such as 127.0.0.1:5984"
    );
    assert_eq!(
        refusal_of_file("listen = 1979-05-27\n"),
        "DIR/stemma.toml, line 1: listen: expected an address and a port, such as 127.0.0.1:5984"
    );
    assert_eq!(
        Place::new("").refusal(&[("require_valid_user", "maybe")], &[]),
        "require_valid_user \"maybe\" (from --require-valid-user): expected true or false"
    );
    assert!(refusal_of_file("listen = \n").starts_with("DIR/stemma.toml, line 1: "));
    assert!(
        refusal_of_file("[admin]\nname = \"ada\"\n")
            .starts_with("admin.name (from DIR/stemma.toml, line 2) has no password | ")
    );
    assert!(refusal_of_file("[tls]\nkey = \"k.pem\"\n").starts_with("tls.certificate is missing"));
    let told = Place::new("").refusal(&[("jwt.keys", "HS256:a=/nowhere/key")], &[]);
    assert!(told.contains("can't be read") && told.contains("/nowhere/key"), "{told}");
    assert!(Place::new("").refusal(&[("jwt.keys", "MD5=/nowhere/key")], &[]).contains("expected ALGORITHM=FILE"));
    let missing =
        Sources { file: Some(PathBuf::from("/nowhere/stemma.toml")), ..Sources::default() }.gather().unwrap_err();
    assert!(missing.message.starts_with("/nowhere/stemma.toml can't be read"), "{missing:?}");
}

#[test]
fn keys_of_tokens_come_from_files() {
    let place = Place::new("");
    std::fs::write(place.path("a"), "a secret of at least thirty-two bytes\n").unwrap();
    let keys = format!("HS256={0},hs512:2026={0}", place.path("a").display());
    let keys = place.gather(&[("jwt.keys", &keys)], &[]).unwrap().config.jwt_keys;
    let found: Vec<_> = keys.iter().map(|key| (key.id.as_deref(), key.algorithm)).collect();
    assert_eq!(found, [(None, JwtAlgorithm::Hs256), (Some("2026"), JwtAlgorithm::Hs512)]);
    assert_eq!(keys[0].key, b"a secret of at least thirty-two bytes");
}

/// `STEMMA_BLESS=1` writes the table into the guide.
#[test]
fn the_guide_has_the_table_of_all_settings() {
    const BEGIN: &str = "<!-- settings: written by a test -->\n";
    const END: &str = "<!-- end of settings -->";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/serve.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let begin = page.find(BEGIN).expect("the guide has a place for the table") + BEGIN.len();
    let end = page.find(END).unwrap();
    if std::env::var_os("STEMMA_BLESS").is_some() {
        std::fs::write(&path, [&page[..begin], &guide(), &page[end..]].concat()).unwrap();
    } else {
        assert_eq!(page[begin..end], guide(), "STEMMA_BLESS=1 writes it down");
    }
}
