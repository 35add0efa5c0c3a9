//! What an agent is told beside the person's prompt: the truth about a turn that was cut off, and the past when it has
//! none.

use segue_log::{
    Block, Call, Conversation, EndReason, Event, Outcome, TranscriptOptions, Turn, code, note, text_of,
    transcript_of_turn,
};

/// How much of the past a new conversation is told at most, in characters: some 60,000 tokens, which every agent's model
/// has room for.
const PAST: usize = 200_000;

/// How much of one call the told past shows, in characters.
const DETAIL: usize = 300;

/// The code of a turn whose agent ended in the middle of it.
pub const DIED: &str = "AGENT_DIED";

/// The code of a turn whose agent had to be ended.
pub const ENDED: &str = "AGENT_ENDED";

/// The turns before `turn` that were cut off and that no later prompt has reported yet, last first.
pub fn cut_off(conversation: &Conversation, turn: u64) -> impl Iterator<Item = &Turn> {
    let earlier = conversation.turns().iter().rev().filter(move |held| held.number < turn);
    earlier
        // A turn without a step never reached the agent: it reported nothing, and nothing of it was lost.
        .take_while(|held| held.steps.is_empty() || is_cut_off(held))
        .filter(|held| !held.steps.is_empty())
}

fn is_cut_off(turn: &Turn) -> bool {
    turn.end.as_ref().is_none_or(|(_, end)| {
        end.reason == EndReason::Interrupted || matches!(end.code.as_deref(), Some(DIED | ENDED))
    })
}

/// What an agent's replay turned out to lack of a turn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lacks {
    /// The prompt.
    pub prompt: bool,
    /// What it had said.
    pub answer: bool,
}

/// The note on turns that were cut off. What the agent's replay is known to have is left out of it; without a replay
/// (`lacks` is none) everything is told.
pub fn cut_off_note(conversation: &Conversation, turn: u64, lacks: Option<Lacks>) -> Option<String> {
    let turns: Vec<&Turn> = cut_off(conversation, turn).collect();
    let lacks = lacks.unwrap_or(Lacks { prompt: true, answer: true });
    let mut parts = Vec::new();
    for (at, held) in turns.iter().rev().enumerate() {
        // The replay was looked at for the last of them only.
        let lacks = if at + 1 == turns.len() { lacks } else { Lacks { prompt: true, answer: true } };
        parts.push(one_cut_off(conversation, held, lacks));
    }
    (!parts.is_empty()).then(|| note(&parts.join("\n\n")))
}

fn one_cut_off(conversation: &Conversation, turn: &Turn, lacks: Lacks) -> String {
    let mut text = String::from(
        "The turn before this one was cut off: a process ended in the middle of it. What follows is what is known of it. It \
         holds over anything else in this conversation that says a call was aborted, failed or should be tried again.",
    );
    if lacks.prompt {
        let prompts = turn.prompt_ids.iter().filter_map(|id| conversation.prompt(id));
        let said: Vec<String> = prompts.map(|prompt| text_of(prompt.content())).collect();
        if !said.is_empty() {
            text.push_str(&format!("\n\nIts prompt, which you may no longer have:\n{}", said.join("\n")));
        }
    }
    let said: Vec<String> = turn
        .steps
        .iter()
        .flat_map(|step| &step.messages)
        .filter_map(|said| said.message())
        .filter(|message| lacks.answer || message.interrupted)
        .map(|message| text_of(&message.content).trim().to_owned())
        .filter(|said| !said.is_empty())
        .collect();
    if lacks.answer && !said.is_empty() {
        text.push_str(&format!("\n\nWhat you had said, as far as it came:\n{}", said.join("\n")));
    }
    let calls: Vec<String> = turn.calls().filter_map(call_line).collect();
    if !calls.is_empty() {
        text.push_str(&format!("\n\nIts calls:\n{}", calls.join("\n")));
    }
    text
}

/// A call of a cut-off turn; those that succeeded in one line.
fn call_line(call: &Call) -> Option<String> {
    let result = call.result()?;
    let input = shortened(&call.input().to_string());
    let how = match (result.outcome, result.code.as_deref()) {
        (Outcome::Ok, _) => "it succeeded".to_owned(),
        (_, Some(code::OUTCOME_UNKNOWN | code::NOT_STARTED)) => text_of(&result.content),
        (_, code) => format!("it failed ({})", code.unwrap_or(code::FAILED)),
    };
    let settled = call.settled.iter().filter_map(|record| match &record.event {
        Event::CallSettled(data) => Some(format!(" The person says: {:?}. {}", data.how, data.note)),
        _ => None,
    });
    Some(format!("- {} {input}: {how}{}", call.tool, settled.collect::<String>()))
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(DETAIL) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
    }
}

/// The past before `turn`, for an agent that has none of it. The oldest goes first where it is too long.
pub fn past(conversation: &Conversation, turn: u64) -> String {
    let options = TranscriptOptions { thinking: false, detail: DETAIL };
    let mut told = Vec::new();
    let mut room = PAST;
    let mut left_out = 0;
    for held in conversation.turns().iter().rev().filter(|held| held.number < turn) {
        if held.steps.is_empty() {
            continue;
        }
        let text = transcript_of_turn(conversation, held, &options);
        let length = text.chars().count();
        if left_out == 0 && length <= room {
            room -= length;
            told.push(text);
        } else if left_out == 0 && told.is_empty() {
            // Even the last turn is too long: its end is what the prompt goes on from.
            let end: String = text.chars().skip(length - room).collect();
            told.push(format!("[… the beginning of this turn is left out]\n{end}"));
            left_out += 1;
        } else {
            left_out += 1;
        }
    }
    told.reverse();
    let missing = match left_out {
        0 => String::new(),
        1 => "The oldest part of it is left out.\n".to_owned(),
        n => format!("Its oldest {n} turns are left out.\n"),
    };
    // Nothing in it may end the note early.
    let text = told.join("\n").replace("segue-note>", "segue_note>");
    note(&format!(
        "This conversation was begun before you; you have none of it in your own history. Here it is, prompts quoted with >, \
         calls in short. Calls marked TOOL_OUTCOME_UNKNOWN may have happened or not: look before you repeat anything. Go on \
         from its end with the prompt outside this note.\n{missing}\n{text}"
    ))
}

/// What an agent is asked when an interrupted turn is taken up again.
pub fn finish() -> &'static str {
    "Go on with the work of the turn that was cut off, from where it stands. First look at what is already done; do not \
     repeat what may have happened."
}

/// The blocks of a prompt as the agent gets them: `//x` stands for its own command `/x`.
pub fn prompt_blocks(blocks: Vec<Block>) -> Vec<Block> {
    let mut blocks = blocks;
    if let Some(Block::Text { text }) = blocks.first_mut()
        && let Some(rest) = text.strip_prefix("//")
    {
        *text = format!("/{rest}");
    }
    blocks
}

/// True if a prompt calls one of the agent's commands, which it must begin with.
pub fn is_command(blocks: &[Block]) -> bool {
    blocks.first().and_then(Block::as_text).is_some_and(|text| text.starts_with('/'))
}
