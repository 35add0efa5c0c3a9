//! What a listing says of a session, from the two ends of its log. Pure: no files here.

use segue_log::{BlobHash, Block, EndReason, Event, Header, Record, Seq, Time, Usage, text_of};

use crate::store::{Holder, Row, State};

/// Characters of a first prompt that stand in for a title.
const TITLE_CHARACTERS: usize = 80;

/// The readable lines near the two ends of a log.
pub(super) struct Ends {
    /// Records near the start, the first one among them unless the log has none.
    pub head: Vec<Record>,
    /// Records near the end, in order; all of them if `whole`.
    pub tail: Vec<Record>,
    /// True if `tail` begins with the first record.
    pub whole: bool,
    /// What cannot be read although it was durable.
    pub damage: Option<String>,
}

impl Ends {
    /// True if nobody ever asked anything, as far as can be seen.
    pub fn is_empty(&self) -> bool {
        let mut all = self.head.iter().chain(&self.tail);
        self.whole && !all.any(|record| matches!(record.event, Event::PromptQueued(_)))
    }

    /// When the last record was written.
    pub fn updated(&self) -> Option<Time> {
        self.tail.last().or(self.head.last()).map(|record| record.time)
    }

    fn all(&self) -> impl Iterator<Item = &Record> {
        let from: Seq = self.tail.first().map_or(Seq::MAX, |record| record.seq);
        self.head.iter().filter(move |record| record.seq < from).chain(&self.tail)
    }
}

/// What is known of a session. `load` fetches the blob of a first prompt that is needed for the title.
pub(super) fn row(
    header: &Header,
    ends: &Ends,
    holder: Option<Holder>,
    load: &mut dyn FnMut(&BlobHash) -> Option<Vec<u8>>,
) -> Row {
    let mut row = Row {
        id: header.id,
        title: String::new(),
        cwd: header.cwd.clone(),
        agent: "segue".into(),
        created: header.created,
        updated: ends.updated().unwrap_or(header.created),
        turns: 0,
        state: State::Idle,
        usage: Usage::default(),
        holder,
        damage: ends.damage.clone(),
    };
    // Where the end says nothing of turns, a turn is under way that has gone on for longer than can be seen.
    let mut open = !ends.whole;
    let mut interrupted = false;
    let mut ended = 0;
    let mut first_prompt = None;
    for record in ends.all() {
        if let Some(turn) = record.event.turn() {
            row.turns = row.turns.max(turn);
        }
        match &record.event {
            Event::PromptQueued(prompt) => {
                first_prompt.get_or_insert((record, &prompt.content));
            }
            Event::SessionTitle(data) => row.title.clone_from(&data.title),
            Event::SessionConfig(data) => {
                if let Some(agent) = &data.agent {
                    row.agent.clone_from(agent);
                }
            }
            Event::TurnEnd(end) => {
                open = false;
                interrupted = end.reason == EndReason::Interrupted;
                ended = end.turn;
                row.turns = row.turns.max(end.turns);
                row.usage = end.usage;
                if !end.title.is_empty() {
                    row.title.clone_from(&end.title);
                }
            }
            // A person's word on a call of an earlier turn opens nothing.
            Event::CallSettled(_) => {}
            event => open |= event.turn().is_some_and(|turn| turn > ended),
        }
    }
    if row.title.is_empty()
        && let Some((record, content)) = first_prompt
    {
        let moved = record.blobs.get("content").and_then(load);
        let moved: Option<Vec<Block>> = moved.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        row.title = start_of(&text_of(moved.as_ref().unwrap_or(content)));
    }
    row.state = match (&row.damage, open, interrupted, &row.holder) {
        (Some(_), ..) => State::Damaged,
        (None, true, _, Some(_)) => State::Running,
        (None, true, _, None) | (None, false, true, _) => State::Interrupted,
        (None, false, false, _) => State::Idle,
    };
    row
}

/// The first line of a text that has any, white space evened out.
fn start_of(text: &str) -> String {
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let words: Vec<&str> = line.split_whitespace().collect();
    words.join(" ").chars().take(TITLE_CHARACTERS).collect()
}
