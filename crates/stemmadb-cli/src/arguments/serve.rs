//! Arguments of `stemma serve`, including one flag for each setting of the server.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use stemmadb_server::settings::{Kind, Setting, settings};

/// The arguments of `stemma serve`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma serve databases\n  \
    STEMMA_ADMIN_PASSWORD=secret stemma serve databases --listen 0.0.0.0:5984\n  \
    stemma serve databases --config server.toml --print-config\n  \
    stemma serve copies --cluster 10.0.0.1:9042,10.0.0.2:9042 --listen 10.0.1.1:5984\n\n\
    The directory contains databases: NAME.stemma, or created over HTTP. While the server runs, no other process can \
    open them. Without an administrator password, one is generated and printed, and the server accepts local \
    connections only.\n\n\
    Each setting is a flag, an environment variable (STEMMA_LISTEN for --listen) and a key of a TOML file. Flags take \
    precedence over variables, and variables over the file. Lists are separated by commas.")]
pub(crate) struct Serve {
    /// The directory of the databases; created if it does not exist
    pub(crate) directory: PathBuf,
    /// The configuration file, by default DIRECTORY/stemma.toml
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print the effective settings and their sources as a configuration file without secrets, and exit
    #[arg(long)]
    pub(crate) print_config: bool,
    #[command(flatten)]
    pub(crate) settings: SettingArguments,
}

/// The arguments of `stemma console`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma console library.stemma\n  \
    stemma console library.stemma --open\n\n\
    Prints an address for a browser on this machine, and serves the database there until interrupted. The address \
    contains a password that is valid for this run: do not pass it on. While the console runs, no other process can \
    open the database.")]
pub(crate) struct Console {
    /// The database
    pub(crate) database: PathBuf,
    /// The port of the loopback address; 0: any free port
    #[arg(long, default_value_t = 0, value_name = "PORT")]
    pub(crate) port: u16,
    /// Open the address in the browser, too
    #[arg(long)]
    pub(crate) open: bool,
}

/// Flags for settings: the name of each given setting with its values.
#[derive(Debug, Default)]
pub(crate) struct SettingArguments(pub(crate) Vec<(String, Vec<String>)>);

impl Args for SettingArguments {
    fn augment_args(command: Command) -> Command {
        command.args(settings().iter().filter_map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SettingArguments {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut arguments = SettingArguments::default();
        arguments.update_from_arg_matches(matches)?;
        Ok(arguments)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for setting in settings().iter().filter(|setting| setting.flag().is_some()) {
            if let Some(values) = matches.get_many::<String>(setting.name) {
                self.0.push((setting.name.to_owned(), values.cloned().collect()));
            }
        }
        Ok(())
    }
}

/// Defines the flag of a setting. Short help lists only settings without a section.
fn argument(setting: &Setting) -> Option<Arg> {
    let flag = setting.flag()?;
    let default = Some(setting.default_text()).filter(|default| !default.is_empty());
    let default = default.map(|default| format!(" [default: {default}]")).unwrap_or_default();
    let argument = Arg::new(setting.name)
        .long(flag)
        .value_name(setting.kind.placeholder())
        .help(format!("{}{default}", setting.help))
        .hide_short_help(setting.name.contains('.'));
    let argument = if setting.name == "cluster.nodes" { argument.visible_alias("cluster") } else { argument };
    Some(match setting.kind {
        Kind::Flag => argument.num_args(0..=1).require_equals(true).default_missing_value("true"),
        kind if kind.is_list() => argument.action(ArgAction::Append),
        _ => argument,
    })
}

#[cfg(test)]
mod tests {
    use stemmadb_server::settings::FILE;

    use super::*;

    #[test]
    fn help_names_the_default_configuration_file() {
        let help = Serve::augment_args(Command::new("serve")).render_long_help().to_string();
        assert!(help.contains(&format!("DIRECTORY/{FILE}")), "{help}");
    }
}
