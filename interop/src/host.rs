//! A program that hosts an agent and leaves its questions open, as a surface does while a person thinks. Print mode, which
//! the scenarios use otherwise, has nobody to ask and refuses at once.
//!
//! `segue-interop host FOLDER MODULES MODEL AGENT SESSION PROMPT`

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use async_trait::async_trait;
use segue_acp::drive::{HostedConfig, HostedDrivers};
use segue_log::{Block, PromptFor};
use segue_runtime::permission::{Answer, Asker, Level, Question, Rules};
use segue_runtime::{Machine, NewPrompt, Options, Sessions};
use segue_store::JsonlStore;

use crate::agents;

/// Somebody who never answers.
struct Thinks;

#[async_trait]
impl Asker for Thinks {
    async fn ask(&self, _: &Question) -> Option<Answer> {
        std::future::pending().await
    }
}

/// Prompts in a session that is there, and waits for the turn's end.
pub fn run(arguments: &[String]) -> Result<()> {
    let [folder, modules, model, name, session, prompt] = arguments else {
        anyhow::bail!("host FOLDER MODULES MODEL AGENT SESSION PROMPT");
    };
    let folder = PathBuf::from(folder);
    let agent = agents::ALL.iter().find(|agent| agent.name == name).context("no such agent")?;
    let config = agent.config(&PathBuf::from(modules), &folder.join("home"), model);
    let hosted = HostedConfig {
        agents: [(name.clone(), config)].into(),
        folder: folder.join("segue/agents"),
        exec: Vec::new(),
        version: "interop".into(),
    };
    let options = Options {
        surface: "interop".into(),
        level: Some(Level::Ask),
        rules: Rules::default(),
        asker: Some(Arc::new(Thinks)),
        machine: Machine { host: "interop".into(), boot: "interop".into() },
        ..Options::default()
    };
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        std::fs::create_dir_all(&hosted.folder)?;
        let store = Arc::new(JsonlStore::open(&folder.join("segue")));
        let sessions = Sessions::new(store, Arc::new(HostedDrivers::new(hosted)), options);
        let (session, _) = sessions.open(session.parse().context("a session's id")?).await?;
        let content = vec![Block::text(prompt)];
        let prompt = NewPrompt { id: None, content, source: "interop".into(), target: PromptFor::Turn };
        let accepted = session.prompt(prompt).await?;
        session.wait(&accepted.prompt_id).await.context("the turn")?;
        session.close().await?;
        Ok(())
    })
}
