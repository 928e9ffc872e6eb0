// Modules: named trees of parameters, layers with PyTorch's semantics and names, initialisers.
//
//   struct Mlp : nn::Module {
//     using Module::Module;
//     nn::Linear fc1{*this, "fc1", {.in = 784, .out = 256}};
//     nn::Linear fc2{*this, "fc2", {.in = 256, .out = 10}};
//     Tensor operator()(const Tensor& x) const { return fc2(relu(fc1(x))); }
//   };
//   Generator gen(42);
//   Mlp net({.gen = gen, .device = Device::cpu()});   // net.parameters(): fc1.weight fc1.bias fc2.weight fc2.bias
#pragma once

#include "levin/nn/attention.h"
#include "levin/nn/call.h"
#include "levin/nn/checkpoint_policy.h"
#include "levin/nn/embedding_bag.h"
#include "levin/nn/graph.h"
#include "levin/nn/image_layers.h"
#include "levin/nn/init.h"
#include "levin/nn/kv_cache.h"
#include "levin/nn/layers.h"
#include "levin/nn/module.h"
#include "levin/nn/parametrize.h"
#include "levin/nn/recurrent.h"
#include "levin/nn/sequential.h"
#include "levin/nn/transformer.h"
