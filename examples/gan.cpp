// Draws handwritten digits: a generator and a discriminator train against each other, by manual optimization with two
// optimizers. Goodfellow et al., 2014; the convolutional pair after Radford et al., 2015.
#include "examples/digits.h"
#include "examples/gan_model.h"

using namespace levin;
using namespace examples::gan;

namespace {

// ---- The program

Settings parse(int argc, char** argv) {
  Settings s;
  s.epochs = 5;
  s.lr = 2e-4;
  s.manual_optimization = true;
  examples::Flags flags("gan", "Trains a generator of handwritten digits against a discriminator (Adam for each).");
  flags.add("--model", s.model)->check(CLI::IsMember({"mlp", "cnn"}));
  examples::add_training_flags(flags, s, {.precisions = kPrecisions});
  flags.parse(argc, argv);
  examples::check_training_flags(flags, s);
  return s;
}

void write_results(const Settings& s, Trainer& trainer, const Gan& gan, bool real_data,
                   const examples::Trained& trained) {
  if (trainer.global_rank() > 0) return;
  if (const std::string out = examples::out_folder(s); !out.empty()) {
    examples::draw_losses(out + "/loss.svg", trainer,
                          {{"d_loss_epoch", "discriminator"}, {"g_loss_epoch", "generator"}},
                          {.title = "Epoch means", .x_label = "batches", .y_label = "cross-entropy"});
    if (!trained.interrupted) save_safetensors(out + "/model.safetensors", gan.state_dict());
  }
  if (s.json.empty()) return;
  examples::Result result = examples::training_result("gan", s, trainer, gan, real_data, trained);
  result.more["d_loss"] = examples::number(examples::metric(trainer, "d_loss_epoch"));
  result.more["g_loss"] = examples::number(examples::metric(trainer, "g_loss_epoch"));
  result.write(s.json);
}

int run(const Settings& s) {
  const Device device = examples::use_machine(s);
  TrainerOptions how = examples::trainer_options(s, device);
  examples::make_output_folder(examples::out_folder(s));
  const auto counted = std::make_shared<examples::SampleCount>();
  how.callbacks.push_back(counted);
  Trainer trainer(how);  // refuses bad options before the search for data

  const Generator gen(s.seed);
  const examples::Digits digits = examples::find_digits(s.data, gen.fork("digits"), kScale);
  std::printf("%s\n", digits.said.c_str());
  std::fflush(stdout);
  data::DataLoader train(digits.train, {.batch_size = s.batch_size,
                                        .shuffle = true,
                                        .num_workers = s.workers,
                                        .pin_memory = device.is_cuda(),
                                        .generator = gen.fork("shuffle")});
  Gan gan(s, gen, device);
  const examples::Trained trained = examples::train(
      "gan", device, *counted, [&] { trainer.fit(gan, {.train = train, .ckpt_path = s.resume}); }, [] {});
  if (!trained.interrupted && trainer.is_global_zero()) {
    std::printf("trained %lld steps in %.1f s, %.0f images/s\ndiscriminator loss %.4f, generator loss %.4f\n",
                static_cast<long long>(trainer.global_step()), trained.seconds, trained.samples_per_second(),
                examples::metric(trainer, "d_loss_epoch"), examples::metric(trainer, "g_loss_epoch"));
  }
  if (trainer.is_global_zero()) write_results(s, trainer, gan, digits.real, trained);
  return trained.interrupted ? 128 + trainer.stop_signal() : examples::kDone;
}

}  // namespace

int main(int argc, char** argv) {
  return examples::run_program("gan", [&] { return run(parse(argc, argv)); });
}
