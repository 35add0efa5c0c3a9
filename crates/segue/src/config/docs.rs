//! The generated part of `docs/configuration.md`.

use super::schema::{InProject, KEYS};

#[test]
fn the_document_says_what_the_code_does() {
    let mut text = String::from(
        "| key | value | default | variable | in a project | meaning |\n|---|---|---|---|---|---|\n",
    );
    for key in KEYS {
        let project = match key.project {
            InProject::Free => "yes",
            InProject::Trusted => "if trusted",
            InProject::Tighten => "stricter; looser if trusted",
            InProject::Never(_) => "never",
        };
        let variable = key.variable().map_or_else(String::new, |name| format!("`{name}`"));
        let default = key.default.map_or_else(String::new, |value| format!("`{value}`"));
        text.push_str(&format!(
            "| `{}` | {} | {default} | {variable} | {project} | {} |\n",
            key.path.replace('*', "NAME"),
            key.kind,
            key.doc
        ));
    }
    text.push_str("\nBuilt-in providers:\n\n```toml\n");
    text.push_str(&super::schema::built_in_providers());
    text.push_str("```\n\nBuilt-in agents:\n\n```toml\n");
    text.push_str(&super::schema::built_in_agents());
    text.push_str("```\n");
    crate::docs_check::check("configuration.md", &text);
}
