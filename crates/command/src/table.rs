//! What one program tells another of its commands and options, for completions: all that completions show.
use clap::builder::PossibleValue;
use clap::{Arg, ArgAction, Command, ValueHint};
use serde::{Deserialize, Serialize};

/// What clap gives to each command.
const EVERYWHERE: [&str; 2] = ["help", "version"];

/// A command.
#[derive(Debug, Serialize, Deserialize)]
pub struct Table {
    name: String,
    about: String,
    arguments: Vec<Argument>,
    commands: Vec<Table>,
    /// Whether `help` is one of the commands.
    has_help: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct Argument {
    id: String,
    short: Option<char>,
    long: Option<String>,
    help: String,
    value_names: Vec<String>,
    /// A flag takes none.
    values: Vec<Value>,
    takes_value: bool,
    /// It can be given several times.
    repeats: bool,
    /// One option takes several values.
    many: bool,
    is_path: bool,
    required: bool,
    /// Behind `--`.
    last: bool,
    conflicts: Vec<String>,
}

/// One of the values that can be given, where only some can.
#[derive(Debug, Serialize, Deserialize)]
struct Value {
    name: String,
    help: Option<String>,
}

impl Table {
    /// What is hidden, and what every command has (`help`, `--help`, `--version`), is left out.
    pub fn of(mut command: Command) -> Table {
        command.build();
        Table::of_built(&command)
    }

    fn of_built(command: &Command) -> Table {
        let about = command.get_about().map(|a| a.to_string());
        let own = |arg: &&Arg| !arg.is_hide_set() && !EVERYWHERE.contains(&arg.get_id().as_str());
        let shown = |sub: &&Command| !sub.is_hide_set() && !EVERYWHERE.contains(&sub.get_name());
        Table {
            name: command.get_name().to_string(),
            about: about.unwrap_or_default(),
            arguments: command
                .get_arguments()
                .filter(own)
                .map(|arg| Argument::of(command, arg))
                .collect(),
            commands: command
                .get_subcommands()
                .filter(shown)
                .map(Table::of_built)
                .collect(),
            has_help: !command.is_disable_help_subcommand_set(),
        }
    }

    /// The command that the table was made of, as far as completions see it; with the name and the description of another.
    pub fn in_place_of(self, other: &Command) -> Command {
        let about = other.get_about().cloned().unwrap_or_default();
        self.made().name(other.get_name().to_string()).about(about)
    }

    fn made(self) -> Command {
        Command::new(self.name)
            .about(self.about)
            .args(self.arguments.into_iter().map(Argument::made))
            .subcommands(self.commands.into_iter().map(Table::made))
            .disable_help_subcommand(!self.has_help)
    }
}

impl Argument {
    fn of(command: &Command, arg: &Arg) -> Argument {
        let conflicts = command.get_arg_conflicts_with(arg);
        let takes_value = arg.get_action().takes_values();
        Argument {
            id: arg.get_id().to_string(),
            short: arg.get_short(),
            long: arg.get_long().map(String::from),
            help: arg.get_help().map(|h| h.to_string()).unwrap_or_default(),
            value_names: arg
                .get_value_names()
                .unwrap_or_default()
                .iter()
                .map(|n| n.to_string())
                .collect(),
            values: match takes_value {
                true => arg.get_possible_values().iter().map(Value::of).collect(),
                false => Vec::new(),
            },
            takes_value,
            repeats: matches!(arg.get_action(), ArgAction::Append | ArgAction::Count),
            many: arg.get_num_args().is_some_and(|n| n.max_values() > 1),
            is_path: arg.get_value_hint() == ValueHint::AnyPath,
            required: arg.is_required_set(),
            last: arg.is_last_set(),
            conflicts: conflicts.iter().map(|a| a.get_id().to_string()).collect(),
        }
    }

    fn made(self) -> Arg {
        let action = match (self.takes_value, self.repeats) {
            (true, false) => ArgAction::Set,
            (true, true) => ArgAction::Append,
            (false, false) => ArgAction::SetTrue,
            (false, true) => ArgAction::Count,
        };
        let mut arg = Arg::new(self.id)
            .help(self.help)
            .action(action)
            .required(self.required)
            .last(self.last)
            .conflicts_with_all(self.conflicts);
        if let Some(short) = self.short {
            arg = arg.short(short);
        }
        if let Some(long) = self.long {
            arg = arg.long(long);
        }
        if !self.takes_value {
            return arg;
        }
        if !self.value_names.is_empty() {
            arg = arg.value_names(self.value_names);
        }
        if self.many {
            arg = arg.num_args(1..);
        }
        if self.is_path {
            arg = arg.value_hint(ValueHint::AnyPath);
        }
        if !self.values.is_empty() {
            let values = self.values.into_iter().map(Value::made);
            arg = arg.value_parser(values.collect::<Vec<_>>());
        }
        arg
    }
}

impl Value {
    fn of(value: &PossibleValue) -> Value {
        Value {
            name: value.get_name().to_string(),
            help: value.get_help().map(|h| h.to_string()),
        }
    }

    fn made(self) -> PossibleValue {
        let value = PossibleValue::new(self.name);
        match self.help {
            Some(help) => value.help(help),
            None => value,
        }
    }
}
