//! An agent's mode, model and options: set again after every way into a conversation, and read back. Agents come back
//! with others, also less strict ones.

use std::collections::BTreeMap;

use segue_log::AgentUpdate;
use segue_runtime::{Result, TurnContext, Update};
use serde_json::{Value, json};

use super::agent::Agent;
use super::config::AgentConfig;
use super::rpc::NoAnswer;

const MODE: &str = "current_mode_update";
const OPTIONS: &str = "config_option_update";

/// What a conversation's settings should be.
struct Wanted {
    mode: Option<String>,
    options: BTreeMap<String, Value>,
    model: Option<String>,
}

impl Wanted {
    /// The last that the log has, else what the configuration says. A model that the session names goes above both.
    fn of(turn: &TurnContext, config: &AgentConfig) -> Self {
        turn.conversation(|conversation| {
            let mode = conversation.agent_state(MODE).and_then(|state| state.get("currentModeId"));
            let mut options: BTreeMap<String, Value> =
                config.options.iter().map(|(id, value)| (id.clone(), json!(value))).collect();
            let known = conversation.agent_state(OPTIONS).and_then(|state| state.get("configOptions"));
            for option in known.and_then(Value::as_array).into_iter().flatten() {
                if let (Some(id), Some(value)) =
                    (option.get("id").and_then(Value::as_str), option.get("currentValue"))
                {
                    options.insert(id.to_owned(), value.clone());
                }
            }
            Self {
                mode: mode.and_then(Value::as_str).map(str::to_owned).or(config.mode.clone()),
                options,
                // A model is named AGENT/NAME, as one of a provider is: another agent's name means nothing to this one.
                model: conversation
                    .settings()
                    .model
                    .as_deref()
                    .and_then(|model| model.strip_prefix(&config.name)?.strip_prefix('/').map(str::to_owned)),
            }
        })
    }
}

/// Sets an agent's settings as they were, and notes how they stand. `opened` is the result of the call that made or found
/// the conversation.
pub async fn restore(
    turn: &TurnContext,
    agent: &mut Agent,
    config: &AgentConfig,
    session: &str,
    opened: &Value,
) -> Result<()> {
    let wanted = Wanted::of(turn, config);
    let mut options = opened.get("configOptions").cloned().unwrap_or(Value::Null);
    let mut mode = opened.pointer("/modes/currentModeId").and_then(Value::as_str).map(str::to_owned);
    let before = (mode.clone(), options.clone());
    for (id, value) in differing(&options, &wanted) {
        let mut params = json!({"sessionId": session, "configId": id, "value": value});
        if let (Value::Bool(_), Value::Object(params)) = (&value, &mut params) {
            params.insert("type".into(), json!("boolean"));
        }
        match agent.ask("session/set_config_option", params, config.init_timeout).await {
            Ok((mut result, mut updates)) => {
                agent.early.append(&mut updates);
                if let Some(list) = result.get_mut("configOptions") {
                    options = list.take();
                }
            }
            Err(error) => told_lost(turn, &id, &value, &words(&error)),
        }
    }
    if let Some(wanted_mode) = wanted.mode.filter(|wanted| mode.is_some() && mode.as_ref() != Some(wanted)) {
        let params = json!({"sessionId": session, "modeId": wanted_mode});
        match agent.ask("session/set_mode", params, config.init_timeout).await {
            Ok((_, mut updates)) => {
                let said = updates.iter().rev().find(|update| is_kind(update, MODE));
                let said = said.and_then(|update| update.get("currentModeId")?.as_str()).map(str::to_owned);
                mode = Some(said.unwrap_or(wanted_mode));
                updates.retain(|update| !is_kind(update, MODE));
                agent.early.append(&mut updates);
            }
            Err(error) => told_lost(turn, "mode", &json!(wanted_mode), &words(&error)),
        }
    }
    let wanted = Wanted::of(turn, config);
    for (id, value) in differing(&options, &wanted) {
        told_lost(turn, &id, &value, "it came back with another");
    }
    let is_known = |kind: &str| turn.conversation(|conversation| conversation.agent_state(kind).is_some());
    if let Some(mode) = mode.filter(|mode| before.0.as_ref() != Some(mode) || !is_known(MODE)) {
        let update = json!({"sessionUpdate": MODE, "currentModeId": mode});
        turn.append(AgentUpdate { update }).await?;
    }
    if !options.is_null() && (before.1 != options || !is_known(OPTIONS)) {
        let update = json!({"sessionUpdate": OPTIONS, "configOptions": options});
        turn.append(AgentUpdate { update }).await?;
    }
    Ok(())
}

fn is_kind(update: &Value, kind: &str) -> bool {
    update.get("sessionUpdate").and_then(Value::as_str) == Some(kind)
}

/// The options that do not stand as they should, with the values they should have.
fn differing(options: &Value, wanted: &Wanted) -> Vec<(String, Value)> {
    let options = options.as_array().into_iter().flatten();
    options
        .filter_map(|option| {
            let id = option.get("id")?.as_str()?;
            let is_model = option.get("category").and_then(Value::as_str) == Some("model");
            let model = wanted.model.as_ref().filter(|_| is_model).map(|model| json!(model));
            let value = model.or_else(|| wanted.options.get(id).cloned())?;
            (option.get("currentValue") != Some(&value)).then(|| (id.to_owned(), value))
        })
        .collect()
}

fn words(error: &NoAnswer) -> String {
    match error {
        NoAnswer::Refused(refusal) => refusal.words(),
        NoAnswer::Closed => "it closed its output".into(),
        NoAnswer::TimedOut => "it did not answer in time".into(),
    }
}

fn told_lost(turn: &TurnContext, what: &str, value: &Value, why: &str) {
    let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    turn.show(Update::Notice {
        code: "AGENT_SETTING_LOST".into(),
        message: format!("the agent's {what} could not be set to {value}: {why}"),
    });
}
