// SPDX-License-Identifier: Apache-2.0
// baechi show: a plan as a picture in the terminal.
#include <cstdlib>
#include <memory>
#include <string>

#include "apps/arguments.h"
#include "apps/command_line.h"
#include "apps/console.h"
#include "apps/system.h"
#include "baechi/report/text/terminal_view.h"

namespace baechi::cli {
namespace {

struct ShowArguments {
  GraphArgument graph;
  std::string plan, color = "auto";
  std::size_t width = 0;  // 0: as the terminal has it
  bool ascii = false, load = false;
};

// Colours are for terminals, and not for those who say NO_COLOR (https://no-color.org).
bool wants_color(const std::string& choice) {
  if (choice != "auto") return choice == "always";
  const char* refused = std::getenv("NO_COLOR");
  return output_is_terminal() && (refused == nullptr || *refused == '\0');
}

ExitCode show(const ShowArguments& options, const RunContext& context) {
  const auto [step, plan, original] = load_plan_to_show(options.plan, options.graph, context);
  const std::size_t width = options.width != 0 ? options.width : terminal_width();
  print_result(context.json ? terminal_view_json(step, plan, width)
                            : terminal_view(step, plan,
                                            {.width = width,
                                             .color = wants_color(options.color),
                                             .ascii = options.ascii,
                                             .load = options.load}));
  return ExitCode::kOk;
}

Run declare_show(OptionSet& set) {
  auto options = std::make_shared<ShowArguments>();
  add_graph_argument(set, options->graph);
  set.add("plan", options->plan, "The plan file").required().check(check_path).type_name("PLAN");
  set.add(
         "--width",
         [options](const std::string& text) {
           options->width = static_cast<std::size_t>(parse_whole_number("--width", text, 40, 1000));
         },
         "Columns of the picture, 40 to 1000; default: those of the terminal")
      .type_name("N");
  set.add("--color", options->color, "Use colours: auto (on a terminal), always or never")
      .one_of({"auto", "always", "never"})
      .show_default();
  set.add_flag("--ascii", options->ascii, "Use no characters beyond ASCII");
  set.add_flag("--load", options->load,
               "Show how busy devices are, where the default shows which micro-batch they run");
  return [options](const RunContext& context) { return show(*options, context); };
}

}  // namespace

extern const Command kShowCommand{
    .name = "show",
    .summary = "Draw a plan in the terminal: when devices compute and how full they are",
    .examples =
        "baechi show model.json plan.json\n"
        "baechi show model.json plan.json --width 160 --color always | less -R",
    .declare = declare_show,
};

}  // namespace baechi::cli
