/* Inside of wire: wire.c sees recipe and plugins, wire_model.c copies sizes. */
#ifndef HOST_WIRE_IMPL_H
#define HOST_WIRE_IMPL_H
#include <train/trainer.h>

#include "recipe.h"

/* A loaded recipe's model and optimiser. The enums of config.h and the words of keys.c stand in the same order. */
void wire_model(model_cfg *m, const recipe *r);
void wire_optimizer(trainer_cfg *t, const recipe *r);

#endif
