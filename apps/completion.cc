// SPDX-License-Identifier: Apache-2.0
// baechi completion: shell code that completes subcommands, options and file names.
#include <memory>
#include <string>
#include <vector>

#include "apps/command_line.h"
#include "apps/console.h"
#include "baechi/io/json/json_writer.h"

namespace baechi::cli {
namespace {

using Words = OptionSet::Words;

std::string join(const std::vector<std::string>& parts, const char* separator) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : separator) + part;
  return text;
}

std::string command_names(const std::vector<Words>& all) {
  std::vector<std::string> names;
  for (const Words& words : all) names.push_back(words.name);
  return join(names, " ");
}

std::string bash(const std::vector<Words>& all) {
  std::string text =
      "_baechi() {\n"
      "  local word=${COMP_WORDS[COMP_CWORD]} options=''\n"
      "  if ((COMP_CWORD == 1)); then\n"
      "    COMPREPLY=($(compgen -W '" +
      command_names(all) +
      " --help --version' -- \"$word\"))\n"
      "    return\n"
      "  fi\n"
      "  case ${COMP_WORDS[1]} in\n";
  for (const Words& words : all)
    text += "    " + words.name + ") options='" + join(words.options, " ") + "' ;;\n";
  return text +
         "  esac\n"
         "  if [[ $word == -* ]]; then\n"
         "    COMPREPLY=($(compgen -W \"$options\" -- \"$word\"))\n"
         "  else\n"
         "    COMPREPLY=($(compgen -f -- \"$word\"))\n"
         "  fi\n"
         "}\n"
         "complete -o filenames -F _baechi baechi\n";
}

// For single quotes in zsh and fish alike.
std::string unquoted(const std::string& text) {
  std::string result;
  for (const char c : text)
    if (c != '\'' && c != '\\') result += c;
  return result;
}

std::string zsh(const std::vector<Words>& all) {
  std::string text =
      "#compdef baechi\n"
      "_baechi() {\n"
      "  local -a commands options\n"
      "  commands=(\n";
  for (const Words& words : all)
    text += "    '" + words.name + ":" + unquoted(words.summary) + "'\n";
  text +=
      "  )\n"
      "  if ((CURRENT == 2)); then\n"
      "    _describe command commands\n"
      "    return\n"
      "  fi\n"
      "  case ${words[2]} in\n";
  for (const Words& words : all)
    text += "    " + words.name + ") options=(" + join(words.options, " ") + ") ;;\n";
  return text +
         "  esac\n"
         "  if [[ ${words[CURRENT]} == -* ]]; then\n"
         "    compadd -- $options\n"
         "  else\n"
         "    _files\n"
         "  fi\n"
         "}\n"
         "compdef _baechi baechi\n";
}

std::string fish(const std::vector<Words>& all) {
  std::string text;
  for (const Words& words : all) {
    text += "complete -c baechi -n __fish_use_subcommand -f -a " + words.name + " -d '" +
            unquoted(words.summary) + "'\n";
    for (const std::string& option : words.options) {
      const bool is_long = option.starts_with("--");
      text += "complete -c baechi -n '__fish_seen_subcommand_from " + words.name + "' " +
              (is_long ? "-l " + option.substr(2) : "-s " + option.substr(1)) + "\n";
    }
  }
  return text;
}

Run declare_completion(OptionSet& set) {
  auto shell = std::make_shared<std::string>();
  set.add("shell", *shell, "bash, zsh or fish").required().one_of({"bash", "zsh", "fish"});
  return [shell, set](const RunContext& context) {
    const std::vector<Words> words = set.all_words();
    const std::string code = *shell == "bash"  ? bash(words)
                             : *shell == "zsh" ? zsh(words)
                                               : fish(words);
    if (context.json) {
      std::string text;
      JsonWriter json(text);
      json.begin_object();
      json.field("shell", *shell);
      json.field("code", code);
      json.end_object();
      json.finish();
      print_result(text);
    } else {
      print_result(code);
    }
    return ExitCode::kOk;
  };
}

}  // namespace

extern const Command kCompletionCommand{
    .name = "completion",
    .summary = "Print shell code that completes baechi's subcommands, options and files",
    .examples =
        "source <(baechi completion bash)\n"
        "baechi completion zsh > ~/.zfunc/_baechi\n"
        "baechi completion fish > ~/.config/fish/completions/baechi.fish",
    .declare = declare_completion,
};

}  // namespace baechi::cli
