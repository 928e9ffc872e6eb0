// Training.
//
//   optim::AdamW opt(net.parameters(), {.lr = 1e-3});
//   Trainer trainer({.max_epochs = 3});
//   trainer.fit(opt, train, [&](const Batch& b) { return cross_entropy(net(b[0]), b[1]); });
//   double acc = trainer.evaluate(test, [&](const Batch& b) { return accuracy(net(b[0]), b[1]); });
//
// fit also takes a TrainModule (levin/train/module.h), which has the step, the optimizers and the hooks itself.
#pragma once

#include "levin/train/averaging.h"
#include "levin/train/callbacks.h"
#include "levin/train/checkpoint_io.h"
#include "levin/train/data_parallel_strategy.h"
#include "levin/train/datamodule.h"
#include "levin/train/ddp_strategy.h"
#include "levin/train/early_stopping.h"
#include "levin/train/fsdp_strategy.h"
#include "levin/train/hooks.h"
#include "levin/train/hparams.h"
#include "levin/train/layer_sync.h"
#include "levin/train/loggers.h"
#include "levin/train/lr_monitor.h"
#include "levin/train/metric.h"
#include "levin/train/metrics.h"
#include "levin/train/model_checkpoint.h"
#include "levin/train/module.h"
#include "levin/train/options.h"
#include "levin/train/pipeline_ranks_strategy.h"
#include "levin/train/pipeline_strategy.h"
#include "levin/train/plot.h"
#include "levin/train/precision_plugin.h"
#include "levin/train/process_strategy.h"
#include "levin/train/profiler.h"
#include "levin/train/records.h"
#include "levin/train/seed.h"
#include "levin/train/sharded_strategy.h"
#include "levin/train/strategy.h"
#include "levin/train/strategy_choice.h"
#include "levin/train/summary.h"
#include "levin/train/trainer.h"
#include "levin/train/tuner.h"
#include "levin/train/zero_strategy.h"
#include "levin/warning.h"
