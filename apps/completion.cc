// SPDX-License-Identifier: Apache-2.0
// baechi completion: shell code that completes subcommands, options, values and file names.
#include <memory>
#include <string>
#include <utility>
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
      "  local word=${COMP_WORDS[COMP_CWORD]} options='' values='' files=''\n"
      "  if ((COMP_CWORD == 1)); then\n"
      "    COMPREPLY=($(compgen -W '" +
      command_names(all) +
      " --help --version' -- \"$word\"))\n"
      "    return\n"
      "  fi\n"
      "  case ${COMP_WORDS[1]} in\n";
  for (const Words& words : all)
    text += "    " + words.name + ") options='" + join(words.options, " ") + "' ;;\n";
  text +=
      "  esac\n"
      "  case \"${COMP_WORDS[1]} ${COMP_WORDS[COMP_CWORD-1]}\" in\n";
  for (const Words& words : all)
    for (const auto& [option, values] : words.values)
      if (!option.empty())
        text += "    '" + words.name + " " + option + "') values='" + join(values, " ") + "' ;;\n";
  text += "    *) case ${COMP_WORDS[1]} in\n";
  for (const Words& words : all)
    if (const auto at = words.values.find(""); at != words.values.end())
      text += "      " + words.name + ") files='" + join(at->second, " ") + "' ;;\n";
  return text +
         "    esac ;;\n"
         "  esac\n"
         "  if [[ -n $values ]]; then\n"
         "    COMPREPLY=($(compgen -W \"$values\" -- \"$word\"))\n"
         "  elif [[ $word == -* ]]; then\n"
         "    COMPREPLY=($(compgen -W \"$options\" -- \"$word\"))\n"
         "  else\n"
         "    COMPREPLY=($(compgen -f -W \"$files\" -- \"$word\"))\n"
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
  text +=
      "  esac\n"
      "  case \"${words[2]} ${words[CURRENT-1]}\" in\n";
  for (const Words& words : all)
    for (const auto& [option, values] : words.values)
      if (!option.empty())
        text += "    '" + words.name + " " + option + "') compadd -- " + join(values, " ") +
                "; return ;;\n";
  text +=
      "  esac\n"
      "  case ${words[2]} in\n";
  for (const Words& words : all)
    if (const auto at = words.values.find(""); at != words.values.end())
      text += "    " + words.name + ") compadd -- " + join(at->second, " ") + " ;;\n";
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
    const std::string begin =
        "complete -c baechi -n '__fish_seen_subcommand_from " + words.name + "' ";
    for (const std::string& option : words.options) {
      const bool is_long = option.starts_with("--");
      text += begin + (is_long ? "-l " + option.substr(2) : "-s " + option.substr(1));
      if (const auto at = words.values.find(option); at != words.values.end())
        text += " -x -a '" + join(at->second, " ") + "'";
      text += '\n';
    }
    if (const auto at = words.values.find(""); at != words.values.end())
      text += begin + "-a '" + join(at->second, " ") + "'\n";
  }
  return text;
}

Run declare_completion(OptionSet& set) {
  auto shell = std::make_shared<std::string>();
  set.add("shell", *shell, "bash, zsh or fish").required().one_of({"bash", "zsh", "fish"});
  return [shell, set](const RunContext& context) {
    std::vector<Words> words = set.all_words();
    Words help;
    help.name = "help";
    help.summary = "Print the help of a subcommand";
    for (const Words& other : words) help.values[""].push_back(other.name);
    words.push_back(std::move(help));
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
    .summary = "Print shell code that completes baechi's subcommands, options, values and files",
    .examples =
        "source <(baechi completion bash)\n"
        "baechi completion zsh > ~/.zfunc/_baechi\n"
        "baechi completion fish > ~/.config/fish/completions/baechi.fish",
    .declare = declare_completion,
};

}  // namespace baechi::cli
