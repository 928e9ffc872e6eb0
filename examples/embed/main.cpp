// Fits y = 3 x + 2 by gradient descent: the smallest whole training with Levin.
#include <levin/levin.h>

#include <cmath>
#include <cstdio>

int main() {
  using namespace levin;
  const Tensor x = linspace(-1, 1, 64, Device::cpu()), y = x * 3 + 2;
  Tensor weight = zeros({1}, Device::cpu()), bias = zeros({1}, Device::cpu());
  weight.requires_grad_();
  bias.requires_grad_();
  for (int step = 0; step < 200; ++step) {
    backward(mean(square(x * weight + bias - y)));
    const NoGrad updates_are_not_recorded;
    for (Tensor* parameter : {&weight, &bias}) {
      add_(*parameter, parameter->grad(), -0.3);
      parameter->set_grad({});
    }
  }
  std::printf("y = %.3f x + %.3f\n", weight.item(), bias.item());
  return std::abs(weight.item() - 3) + std::abs(bias.item() - 2) < 1e-3 ? 0 : 1;
}
