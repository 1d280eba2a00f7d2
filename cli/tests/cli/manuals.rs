//! `completions` and `man`.

use crate::support::Folder;

#[test]
fn each_shell_gets_a_script_that_knows_commands_and_options() {
    let folder = Folder::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ran = folder.run(&format!("completions {shell}")).expect(0, &[]);
        for word in ["bucketeer", "check-ranks", "keep-schedule"] {
            assert!(ran.out().contains(word), "{shell}: no {word}");
        }
        assert_eq!(ran.talk(), "", "{shell}");
    }
    folder.run("completions tcsh").expect(2, &["invalid value 'tcsh'", "powershell"]);
}

#[test]
fn there_is_a_manual_page_of_the_tool_and_of_each_command() {
    let folder = Folder::new();
    let page = folder.run("man").expect(0, &[]);
    for part in [".TH bucketeer 1", ".SH EXAMPLES", "bucketeer\\-rewrite(1)"] {
        assert!(page.out().contains(part), "no `{part}` in:\n{}", page.out());
    }
    let page = folder.run("man check-ranks").expect(0, &[]);
    assert!(page.out().contains(".TH bucketeer-check-ranks 1"), "{}", page.out());
    folder.run("man --help").expect(0, &[]);
}

#[test]
fn a_manual_page_of_an_unknown_command_is_refused_with_those_that_there_are() {
    let ran =
        Folder::new().run("man nothing").expect(2, &["man `nothing`: there is no such command", "rewrite, inspect"]);
    assert_eq!(ran.out(), "");
}
