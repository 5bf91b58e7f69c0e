"""The backend: batches in, gradients and optimiser steps out."""
